"""One step of a wrapped optimizer."""
