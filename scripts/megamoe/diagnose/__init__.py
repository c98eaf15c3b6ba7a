"""`megamoe diagnose`: the first cause in one or more logs, and what follows from it."""
