"""Pins: the one file of versions (docker/pins.toml), checked, mirrored and verified."""
