"""Smoke: proves in under a minute that a server answers, and that the fused path ran."""
