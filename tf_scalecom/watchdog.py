"""Ends collectives that wait for another worker longer than a limit.

TensorFlow notices a worker that died or was stopped, but not one that lives and does not come: it
sleeps in Python, sits in a debugger, or has left the training loop. TensorFlow's own limit for
collectives (`CommunicationOptions.timeout_seconds`) starts a thread for each call that lives as
long as the limit, so it serves for debugging only. One thread that looks at the launchers' counts
from time to time does the same at no cost.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.eager import context

from tf_scalecom.collectives import CollectiveLauncher

DEFAULT_SECONDS = 600.0
_LOOKS_PER_LIMIT = 8
_LONGEST_PAUSE_SECONDS = 10.0


class Watchdog:
    """Watches the collectives of some launchers.

    Args:
        launchers: the launchers.
        name: what to call this process in the message, e.g. "worker 0".
        limit_seconds: the longest that one collective may take.
    """

    def __init__(self, launchers: Sequence[CollectiveLauncher], name: str, limit_seconds: float):
        self._launchers = launchers
        self._name = name
        self._limit = limit_seconds
        self._stopped = threading.Event()
        # Daemon: the end of the main thread is the end of training. It must not be inside
        # TensorFlow, though, when the interpreter goes.
        self._thread = threading.Thread(target=self._watch, name="scalecom-watchdog", daemon=True)
        self._thread.start()
        atexit.register(_stop, weakref.ref(self))

    def stop(self):
        """Ends the watch."""
        self._stopped.set()
        self._thread.join()

    def _watch(self):
        # Number of the call under way, and when it was first seen.
        seen = {launcher: (None, 0.0) for launcher in self._launchers}
        while not self._stopped.wait(min(self._limit / _LOOKS_PER_LIMIT, _LONGEST_PAUSE_SECONDS)):
            now = time.monotonic()
            for launcher in self._launchers:
                # In this order: a call that ends in between is not taken for one under way.
                begun, ended = launcher.begun.numpy(), launcher.ended.numpy()
                number, since = seen[launcher]
                if begun == ended:
                    seen[launcher] = (None, now)
                elif begun != number:
                    seen[launcher] = (begun, now)
                elif now - since > self._limit:
                    self._abort(now - since)
                    return

    def _abort(self, seconds):
        context.context().abort_collective_ops(
            tf.errors.DEADLINE_EXCEEDED,
            f"tf_scalecom: {self._name} has waited {seconds:.0f} s in a collective for another "
            "worker, which is alive but does not take part: it may sleep, sit in a debugger, have "
            "raised an error or left its training loop. Look at the logs of all workers; all must "
            "make the same calls. CommunicationOptions(timeout_seconds=...) sets the limit.",
        )


def _stop(reference):
    watchdog = reference()
    if watchdog is not None:
        watchdog.stop()
