"""Paired comparison of two evaluations, flips shown."""
