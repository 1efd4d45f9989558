"""Where an error of somebody else's code comes from, for a message of one line."""

import pathlib
import traceback


def told(error: BaseException) -> str:
    """Kind, first line and place of an error that was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    words = str(error).partition("\n")[0]
    return (
        f"{type(error).__name__}: {words} (line {frame.lineno} of "
        f"{pathlib.Path(frame.filename).name})"
    )
