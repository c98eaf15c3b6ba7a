"""CPU engine with ATOM's outside: real weights, real text, MoE layers through the megamoe_atom adapter."""
