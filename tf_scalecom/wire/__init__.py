"""What travels, in plain Python: plans, their arguments, warm-up, bytes."""
