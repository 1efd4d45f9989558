"""Types of command-line arguments that several commands take."""

import argparse
import math
from collections.abc import Callable

# Of speeds and sizes: products and quotients of several are neither 0 nor infinite.
_SMALLEST, _LARGEST = 1e-9, 1e12


def seconds(text: str) -> float:
    """A number of seconds, 0 or more."""
    return number(text, what="a number of seconds", advice="try 10")


def number(
    text: str, least: float = 0.0, what: str = "a number", advice: str = "correct it"
) -> float:
    """A finite number, `least` or more; `what` and `advice` are for the error."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise argparse.ArgumentTypeError(
            f"expected {what}, {least:g} or more, received {text!r}: {advice}"
        )
    return value


def positive_number(text: str) -> float:
    """A number above 0 with which one can still calculate."""
    value = number(text)
    if not _SMALLEST <= value <= _LARGEST:
        raise argparse.ArgumentTypeError(
            f"expected a number from {_SMALLEST:g} to {_LARGEST:g}, received {text!r}: correct it"
        )
    return value


def whole_number(least: int, of: str = "", advice: str = "correct it") -> Callable[[str], int]:
    """The type of a whole number, `least` or more; `of` what and `advice` are for the error."""

    def whole_number_of(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number{of and f' of {of}'}, {least} or more, received {text!r}: "
                f"{advice}"
            )
        return int(text)

    return whole_number_of
