"""Workers' output on one terminal: redrawn lines, prefixes, the live line of worker 0."""

import io
import time

import pytest

from tf_scalecom.launch.worker_output import LineAssembler, OutputDisplay, last_lines

# (name, chunks of output, finished lines, unfinished line)
OUTPUTS = [
    ("plain", [b"one\ntwo\nthr"], ["one", "two"], "thr"),
    ("chunks", [b"o", b"ne\nt", b"wo"], ["one"], "two"),
    ("windows line end", [b"one\r\n"], ["one"], ""),
    ("carriage return", [b"10%\r20%\r", b"100%\n"], ["100%"], ""),
    ("shorter after carriage return", [b"12 left\r5 left\n"], ["5 left"], ""),
    ("spinner", [b"wait |\b/\b-"], [], "wait -"),
    # Keras: as many backspaces as the old bar is wide, then a carriage return.
    ("keras", [b"\r1/2 ==..", b"\b" * 8 + b"\r2/2 ====", b"\n"], ["2/2 ===="], ""),
    ("nothing replaces it", [b"done\r"], [], "done"),
    ("colours stay", [b"\x1b[1mbold\x1b[0m\n"], ["\x1b[1mbold\x1b[0m"], ""),
    ("cursor movements go", [b"a\x1b[Ab\x1b[2K\n"], ["ab"], ""),
    ("cut escape", [b"a\x1b[3", b"2mb\n"], ["a\x1b[32mb"], ""),
    ("titles go", [b"a\x1b]0;ti", b"tle\x07b\x1b]8;;there\x1b\\c\n"], ["abc"], ""),
    ("resets go", [b"a\x1bcb\x1b(0c\x1b[?25l\x1b[!pd\x1b", b"ce\n"], ["abcde"], ""),
    ("an endless title", [b"a\x1b]0;" + 5_000 * b"x", b"y\nb\n"], ["ay", "b"], ""),
    ("other controls go", [b"a\x00\x07\x0eb\xc2\x9bc\tz\x7f\n"], ["abc\tz"], ""),
    ("cut character", ["━".encode()[:1], "━\n".encode()[1:]], ["━"], ""),
    ("not UTF-8", [b"\xff\n"], ["\N{REPLACEMENT CHARACTER}"], ""),
]


@pytest.mark.parametrize(
    "chunks, finished, unfinished", [case[1:] for case in OUTPUTS], ids=[c[0] for c in OUTPUTS]
)
def test_lines_are_what_a_terminal_would_show(chunks, finished, unfinished):
    assembler = LineAssembler()
    assert [line for chunk in chunks for line in assembler.feed(chunk)] == finished
    assert assembler.unfinished == unfinished


def test_last_lines_have_no_colours_and_no_past_states():
    output = b"first\nold\rnew\n\x1b[31merror\x1b[0m"
    assert last_lines(output, 2) == ["new", "error"]


@pytest.mark.parametrize("piece", [b"\x1b[31ma", b"a\b\b"])
def test_a_line_without_end_takes_no_longer_than_others(piece):
    assembler = LineAssembler()
    assembler.feed(900_000 * b"x")
    start = time.process_time()
    assembler.feed(30_000 * piece)
    assert time.process_time() - start < 1  # where each piece makes a copy of the line, 2 s or more


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def screen(self):
        """The lines that a terminal would show now."""
        lines = [""]
        for part in self.getvalue().replace("\r\x1b[K", "\v").replace("\x1b[0m", "").split("\n"):
            lines[-1] = part.split("\v")[-1]
            lines.append("")
        return lines[:-1]


def test_the_live_line_stays_below_other_workers_lines():
    terminal = Terminal()
    display = OutputDisplay(terminal, 2)
    display.show(0, b"1/9 =.")
    display.refresh()
    assert terminal.screen() == ["[worker 0] 1/9 =."]
    display.show(1, b"hello\n1/9 =.")
    display.refresh()
    assert terminal.screen() == ["[worker 1] hello", "[worker 0] 1/9 =."]
    display.show(0, b"\r9/9 ==\n")
    display.note("bye")
    assert terminal.screen() == ["[worker 1] hello", "[worker 0] 9/9 ==", "[run] bye", ""]
    display.finish()
    assert terminal.screen()[-2:] == ["[worker 1] 1/9 =.", ""]


def test_a_live_line_never_wraps(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Terminal()
    display = OutputDisplay(terminal, 1)
    display.show(0, b"\x1b[1m" + b"x" * 50)
    display.refresh()
    assert terminal.screen() == ["[worker 0] xxxxxxxx"]


def test_a_file_gets_whole_lines_without_colours():
    stream = io.StringIO()
    display = OutputDisplay(stream, 12)
    for step in range(9):
        display.show(0, b"\r\x1b[1m%d/9\x1b[0m" % step)
        display.refresh()
    display.show(11, b"hello\n")
    display.finish()
    assert stream.getvalue() == "[worker 11] hello\n[worker  0] 8/9\n"


def test_a_file_gets_a_long_unfinished_line_now_and_then():
    stream = io.StringIO()
    display = OutputDisplay(stream, 1, repeat_seconds=0.0)
    for step in (1, 1, 2):
        display.show(0, b"\r%d/2" % step)
        display.refresh()
    assert stream.getvalue() == "[worker 0] 1/2\n[worker 0] 2/2\n"
