"""What the image itself does at start: facts of the container, the last judgement before the engine, and its caches."""
