"""Keras's loops and data on several workers."""
