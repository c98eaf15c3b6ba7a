"""Identity of an installation or image: recorded once in the build, re-verified on demand."""
