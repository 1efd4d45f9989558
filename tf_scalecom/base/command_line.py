"""What the commands share: types of their arguments, and how they end with an error."""

import argparse
import math
import pathlib
import typing
from collections.abc import Callable

from tf_scalecom.base.terminal import one_line

# Of speeds and sizes: products and quotients of several are neither 0 nor infinite.
_SMALLEST, _LARGEST = 1e-9, 1e12
# Python reads no number of thousands of digits.
_DIGITS = 20


def end(parser: argparse.ArgumentParser, error: BaseException | str) -> typing.NoReturn:
    """Ends as `parser.error` does, in one line: without the usage, which has a page."""
    parser.exit(2, f"{parser.prog}: error: {one_line(str(error))}\n")


def folder(text: str) -> pathlib.Path:
    """A folder's path, which a shell's unset variable is none of."""
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, received '': name one")
    return pathlib.Path(text)


def seconds(text: str) -> float:
    """A number of seconds, 0 or more."""
    return number(text, what="a number of seconds", advice="try 10")


def number(
    text: str, least: float = 0.0, what: str = "a number", advice: str = "correct it"
) -> float:
    """A number with which one can still calculate; `what` and `advice` are for the error."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= _LARGEST:
        raise argparse.ArgumentTypeError(
            f"expected {what} from {least:g} to {_LARGEST:g}, received {text!r}: {advice}"
        )
    return value


def positive_number(text: str) -> float:
    """As `number`, above 0."""
    return number(text, least=_SMALLEST)


def whole_number(least: int, of: str = "", advice: str = "correct it") -> Callable[[str], int]:
    """The type of a whole number, `least` or more; `of` what and `advice` are for the error."""

    def whole_number_of(text):
        value = int(text) if text.isdecimal() and len(text) <= _DIGITS else -1
        if not least <= value <= _LARGEST:
            raise argparse.ArgumentTypeError(
                f"expected a whole number{of and f' of {of}'} from {least} to "
                f"{_LARGEST:,.0f}, received {text!r}: {advice}"
            )
        return value

    return whole_number_of
