"""What this package says in the log."""

import contextlib
import logging


@contextlib.contextmanager
def warnings_logged():
    """Lines of warnings that this process logs meanwhile."""
    lines = []

    class Handler(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    handler = Handler(logging.WARNING)
    logger = logging.getLogger("absl")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
