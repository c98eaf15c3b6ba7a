"""Semantic edits to an ATOM source tree: apply, check, diff, revert."""
