"""`megamoe kernels`: the gfx950 kernels captured, executed, checked and linted."""
