"""Types of command-line arguments that several commands take."""

import argparse


def seconds(text: str) -> float:
    """A number of seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(
            f"expected a number of seconds, 0 or more, received {text!r}: try 10"
        )
    return value
