"""What a worker that fails because another one did says at its end: which one that was.

TensorFlow passes such an error on from worker to worker, and names each that passed it. Who is at
the root of it shows in who no longer answers. So a worker that fails because of others asks them
before it ends, and stays a little to answer those who ask later.

After that it leaves without TensorFlow's own end, which would wait for workers that are gone.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

# Workers hear of a failure within about a second of each other.
_STAY_SECONDS = 4.0
_ABORTED = "Collective ops is aborted"
_EXIT_CODE = 1  # Python's, after an error


class FailureCause:
    """Names it on stderr, after the traceback of an error that ends the process.

    Nothing is said of an error that the program handles.

    Args:
        name: this process's task, e.g. "worker 0".
        find_gone: function that asks the peers and returns which do not answer, in words.

    Attributes:
        is_awaited: whether others may ask this worker before they end. Where whoever started the
            workers has asked them to end, nobody does any more.
    """

    is_awaited = True

    def __init__(self, name: str, find_gone: Callable[[], Sequence[str]]):
        self._name = name
        self._has_failed = False
        self._find_gone = find_gone
        self._previous: Callable = sys.excepthook
        sys.excepthook = self

    def stop(self) -> None:
        """Has the process end without it."""
        if sys.excepthook is self:
            sys.excepthook = self._previous

    def __call__(self, kind, error, traceback):
        self._previous(kind, error, traceback)
        words = str(error)
        if not isinstance(error, tf.errors.OpError) or _ABORTED not in words:
            return
        self._has_failed = True
        # What the watchdog of some worker has aborted names the right one already.
        if "tf_scalecom: " not in words and (gone := self._find_gone()):
            print(
                f"tf_scalecom: {self._name} has failed because of {'; '.join(gone)}. Look for the "
                "cause in the log there. Others that are named above only passed the error on.",
                file=sys.stderr,
                flush=True,
            )
        if FailureCause.is_awaited:
            time.sleep(_STAY_SECONDS)

    def leave(self) -> None:
        """Ends the process at once, if it has failed because of another; the last of its acts."""
        if self._has_failed:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(_EXIT_CODE)
