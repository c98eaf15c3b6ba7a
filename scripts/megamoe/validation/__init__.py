"""Scripts that travel with the CLI: the whole validation in one command, and lm-eval's own environment."""
