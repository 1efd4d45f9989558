"""Where an error of somebody else's code comes from, for a message of one line."""

import os
import pathlib
import re
import sysconfig
import traceback

from tf_scalecom.base.terminal import one_line, shortened

_PACKAGE = f"{pathlib.Path(__file__).resolve().parents[1]}{os.sep}"
_PATHS = sysconfig.get_paths()
# Not the user's: this package, Python itself, and what is installed.
_OTHERS = (
    _PACKAGE,
    *(_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
# TensorFlow's errors in graphs: where the operation was made comes before what is wrong.
_MADE_AT = re.compile(r'File "([^"\n]+)", line (\d+)')
_GRAPH = re.compile(r"Graph execution error:.*\nNode: '[^\n]*'\n", re.DOTALL)


def told(error: BaseException) -> str:
    """Kind and words of an error that was raised, and the user's own line that it came from."""
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:
        text = "without words"
    words = shortened(one_line(_GRAPH.sub("", text)))
    said = f"{type(error).__name__}: {words}" if words else type(error).__name__
    file, line = _place(error, text)
    return f"{said} (line {line} of {_from_here(file)})" if file else said


def _place(error, text):
    """File and line; None where no code of the user's took part."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    places = [*_MADE_AT.findall(text), *((frame.filename, frame.lineno) for frame in frames)]
    # Compiled modules name files that are not here, Python such that are none.
    own = [
        (file, line)
        for file, line in places
        if os.path.isfile(file) and not file.startswith(_OTHERS)
    ]
    return own[-1] if own else (None, None)


def _from_here(file):
    path = os.path.relpath(file)
    return os.path.abspath(file) if path.startswith(os.pardir) else path
