"""Evidence files of the running adapter, rank by rank."""
