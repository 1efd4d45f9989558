"""The package's warnings, as what a user finds in the log."""

import logging

from absl import logging as absl_logging


class Collected(logging.Handler):
    """The warnings of tf_scalecom while in use as a context manager."""

    def __enter__(self):
        self.texts = []
        absl_logging.get_absl_logger().addHandler(self)
        return self

    def __exit__(self, *_):
        absl_logging.get_absl_logger().removeHandler(self)

    def emit(self, record):
        if record.levelno == logging.WARNING and "tf_scalecom" in record.getMessage():
            self.texts.append(record.getMessage())
