"""Processes that meet, talk, compare themselves, and never wait without end."""
