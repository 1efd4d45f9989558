"""Text from elsewhere on a terminal: nothing that moves its cursor or sets it."""

import re

# ECMA-48: control sequences, of which colours are some; strings for the terminal, such as its
# title, to their end or the line's; and what is left, of two characters or three.
ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
_LONGEST = 400
_LONGEST_VALUE = 500


def printable(text: str) -> str:
    """What is no letter of one line is written out, as Python does."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """In one line, without escapes."""
    return printable(" ".join(ESCAPE.sub("", text).split()))


def shortened(text: str) -> str:
    """The beginning of it that one still reads."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def shown(value: object) -> str:
    """As Python writes it, or the beginning of that and how long it is."""
    text = repr(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[:_LONGEST_VALUE]}... ({len(text):,} characters)"
