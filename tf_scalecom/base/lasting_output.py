"""Standard output that a command goes on without."""

import contextlib
import io
import sys
from collections.abc import Callable
from typing import TextIO


class LastingOutput:
    """A text stream: where nothing can be written any more, as on a full disk, the rest is dropped.

    That is said once on stderr; a reader that has gone is an error. Letters that the stream does
    not know are written out.

    Args:
        stream: where to write; None, as Python has it where it was started without, drops all.
        who: says it.

    Attributes:
        lost: whether something was dropped.
    """

    def __init__(self, stream: TextIO | None, who: str):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        self._stream = stream
        self._who = who
        self.lost = False

    def write(self, text: str) -> int:
        """As a text stream's."""
        self._try(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        """As a text stream's."""
        self._try(lambda stream: stream.flush())

    def isatty(self) -> bool:
        """As a text stream's."""
        return self._stream is not None and self._stream.isatty()

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def _try(self, action: Callable[[TextIO], object]) -> None:
        if self._stream is None or self.lost:
            return
        try:
            action(self._stream)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.lost = True
            with contextlib.suppress(OSError):  # it may go to the same full disk
                print(
                    f"{self._who}: no more output: {error.strerror}; the command goes on",
                    file=sys.stderr,
                )
