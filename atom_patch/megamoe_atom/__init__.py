"""Adapter that lets ATOM run its expert-parallel MoE step on FlyDSL's fused MegaMoE v1.

Nothing here imports atom, aiter, mori or FlyDSL when the module is imported: the classes of ATOM are handed in.
"""

__version__ = "0.1.0"
