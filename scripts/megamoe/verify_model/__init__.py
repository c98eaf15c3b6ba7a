"""`megamoe verify-model`: is a model directory complete and of the right kind, without reading its data."""
