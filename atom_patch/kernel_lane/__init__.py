"""Proof lane: the compiled gfx950 MegaMoE kernels executed instruction by instruction on a CPU."""
