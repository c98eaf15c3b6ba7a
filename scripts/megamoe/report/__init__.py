"""HTML, JSON, JUnit and Markdown from the same evidence, byte-identical for identical input."""
