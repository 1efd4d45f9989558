"""A page of the documentation as a program: its files, its commands, and what they print."""

import re
from pathlib import Path
from typing import NamedTuple

from package_source import ROOT

_BLOCK = r"```{}\n(.*?)^```$"
_FILE = re.compile(r"Save as `([\w.]+)`:\n\n" + _BLOCK.format("python"), re.S | re.M)
_SCRIPT = re.compile(_BLOCK.format("python"), re.S | re.M)
_COMMAND = re.compile(r"^```sh\n([^`]*)\n```\n\n```\n(.*?)\n```$", re.S | re.M)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_TOLERANCE = 0.05


class Command(NamedTuple):
    """A line for the shell, and lines that it prints."""

    line: str
    shown: list[str]


class Page:
    """A page of docs/.

    Attributes:
        text: the page.
        files: what it says to save, name -> text.
        script: all its Python, in one.
        commands: what it says to run and shows the output of.
    """

    def __init__(self, name: str):
        self.text = (ROOT / "docs" / name).read_text()
        self.files: dict[str, str] = dict(_FILE.findall(self.text))
        self.script = "\n".join(_SCRIPT.findall(self.text))
        self.commands = [
            Command(line, shown.splitlines()) for line, shown in _COMMAND.findall(self.text)
        ]

    def write_files(self, folder: Path) -> None:
        """Saves what the page says to save."""
        for name, text in self.files.items():
            (folder / name).write_text(text)


def missing(shown: list[str], printed: str) -> list[str]:
    """Lines of a page that were not printed, in their order, with numbers near to theirs."""
    lines = iter(printed.splitlines())
    return [line for line in shown if not any(_is_near(line, other) for other in lines)]


def _is_near(line, other):
    if _words(line) != _words(other):
        return False
    pairs = zip(_numbers(line), _numbers(other), strict=True)
    return all(abs(a - b) <= _TOLERANCE * max(a, b) for a, b in pairs)


def _words(line):
    return re.sub(r"[-\s]+", " ", _NUMBER.sub("0", line)).strip()


def _numbers(line):
    return [float(number.replace(",", "")) for number in _NUMBER.findall(line)]
