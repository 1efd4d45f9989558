"""The output of several workers on one terminal: whole prefixed lines and one live progress bar."""

import codecs
import io
import re
import shutil
import time
from collections.abc import Callable
from typing import TextIO

from tf_scalecom.base.terminal import ESCAPE

_TOKENS = re.compile(rf"({ESCAPE.pattern})|(\r)|(\x08+)|(\n)|([^\x1b\r\x08\n]+|\x1b)")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# The beginning of an escape sequence that the end of the data cuts; a longer one is none.
_CUT = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]{0,4096}\x1b?|[ -/]*)$")
# What is left of control characters then, but for the tab.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONGEST_LINE = 1 << 20
_CLEAR_LINE = "\r\x1b[K"
_RESET_COLOURS = "\x1b[0m"


class LineAssembler:
    """Turns one worker's bytes into finished lines and the state of the unfinished one.

    A progress bar redraws its line: it moves the cursor back with carriage returns or backspaces
    and writes again. The redrawn part replaces the old one, so a finished line is what a terminal
    would show, not all its past states.
    """

    def __init__(self):
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._undecided = ""  # the beginning of an escape sequence cut by the end of the data
        self._line = io.StringIO()  # of a string each of many short tokens would make a copy
        self._go_back = 0  # characters that the next text replaces

    @property
    def unfinished(self) -> str:
        """The current line, which no newline has ended yet."""
        return self._line.getvalue()

    def feed(self, data: bytes) -> list[str]:
        """Take in more output; returns the lines that it finished, without their newlines."""
        text = self._undecided + self._decoder.decode(data)
        cut = _CUT.search(text)
        self._undecided = text[cut.start() :] if cut else ""
        finished = []
        for token in _TOKENS.finditer(text[: cut.start()] if cut else text):
            escape, carriage_return, backspaces, newline, _ = token.groups()
            if newline:
                finished.append(self._finish())
            elif carriage_return:
                self._go_back = self._line.tell()
            elif backspaces:
                self._go_back += len(backspaces)
            elif escape is None:
                self._write(_CONTROLS.sub("", token.group()))
            elif _COLOUR.fullmatch(escape):
                self._write(escape)  # others would leave the worker's own line
            if self._line.tell() > _LONGEST_LINE:
                finished.append(self._finish())
        return finished

    def _finish(self) -> str:
        line, self._line, self._go_back = self.unfinished, io.StringIO(), 0
        return line

    def _write(self, text: str) -> None:
        # Nothing is taken away before there is something to replace it: bars that end their line
        # with "\r\n" keep it. Colours make a line longer than it looks, hence the max.
        if self._go_back:
            self._line.seek(max(0, self._line.tell() - self._go_back))
            self._line.truncate()
            self._go_back = 0
        self._line.write(text)


def last_lines(
    output: bytes, count: int, leave_out: Callable[[str], bool] = lambda line: False
) -> list[str]:
    """The last `count` lines of some output as a terminal would show them, without colours.

    Those of which `leave_out` says so are no lines.
    """
    assembler = LineAssembler()
    lines = assembler.feed(output)
    if assembler.unfinished:
        lines.append(assembler.unfinished)
    lines = [line for line in lines if not leave_out(line)]
    return [ESCAPE.sub("", line) for line in lines[-count:]]


class OutputDisplay:
    """Prints workers' lines with a prefix, and worker 0's unfinished line live.

    On a terminal the live line is redrawn in place below everything else. Elsewhere (a file, a
    pipe) only whole lines are written, and the changing state of an unfinished line every
    `repeat_seconds`, so that a long epoch does not look like a hang.

    Args:
        stream: where to print.
        num_workers: how many workers there are.
        quiet: whether to print the launcher's own messages only.
        leave_out: says of a line whether not to print it; by default all are printed.
        repeat_seconds: see above.
    """

    def __init__(
        self,
        stream: TextIO,
        num_workers: int,
        *,
        quiet: bool = False,
        leave_out: Callable[[str], bool] = lambda line: False,
        repeat_seconds: float = 10.0,
    ):
        self.quiet = quiet
        self.leave_out = leave_out
        self._stream = stream
        self._terminal = stream.isatty()
        self._assemblers = [LineAssembler() for _ in range(num_workers)]
        width = len(str(num_workers - 1))
        self._prefixes = [f"[worker {i:{width}}] " for i in range(num_workers)]
        self._repeat_seconds = repeat_seconds
        self._live = ""  # what a terminal shows below the last whole line
        self._repeated = ""
        self._last_write = time.monotonic()

    def show(self, index: int, data: bytes) -> None:
        """Print what `data`, new output of worker `index`, brings to an end."""
        if self.quiet:
            return
        for line in self._assemblers[index].feed(data):
            if not self.leave_out(line):
                self._write_line(self._prefixes[index] + line)

    def refresh(self) -> None:
        """Bring worker 0's unfinished line up to date and flush. Call it regularly."""
        unfinished = self._assemblers[0].unfinished
        if unfinished and self._terminal:
            self._draw_live(self._prefixes[0] + unfinished)
        elif (
            unfinished
            and unfinished != self._repeated
            and time.monotonic() - self._last_write > self._repeat_seconds
        ):
            self._write_line(self._prefixes[0] + unfinished)
            self._repeated = unfinished
        self._stream.flush()

    def note(self, text: str) -> None:
        """Print a message of the launcher itself."""
        for line in text.split("\n"):
            self._write_line("[run] " + line)
        self._stream.flush()

    def finish(self) -> None:
        """Print every line that was left unfinished, once all workers have ended."""
        for index, assembler in enumerate(self._assemblers):
            if assembler.unfinished:
                self.show(index, b"\n")
        self._stream.flush()

    def _write_line(self, line: str) -> None:
        if self._live:
            self._stream.write(_CLEAR_LINE)
            self._live = ""
        if not self._terminal:
            line = ESCAPE.sub("", line)
        elif "\x1b" in line:
            line += _RESET_COLOURS
        self._stream.write(line + "\n")
        self._last_write = time.monotonic()

    def _draw_live(self, line: str) -> None:
        if line == self._live:
            return
        shown = line + _RESET_COLOURS
        # A line that wraps cannot be redrawn by a carriage return.
        columns = shutil.get_terminal_size().columns
        plain = ESCAPE.sub("", line)
        if len(plain) >= columns:
            shown = plain[: columns - 1]
        self._stream.write(_CLEAR_LINE + shown)
        self._live = line
