"""What is kept of a training run, and shown of it."""
