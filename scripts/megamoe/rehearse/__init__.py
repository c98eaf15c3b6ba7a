"""`megamoe rehearse`: from a bare machine to a validated service on containers that stand for hosts."""
