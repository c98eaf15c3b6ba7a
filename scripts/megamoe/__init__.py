"""The `megamoe` command: plan, preflight, verify, validate and report a MegaMoE deployment."""

__version__ = "0.1.0"
