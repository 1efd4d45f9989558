"""Who dies, or is stopped, between the workers' meeting and the end of TensorFlow's start is named.

TensorFlow waits there for all workers, a minute for one that has died, and names it late or never.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping

import tensorflow as tf

from tf_scalecom.workers.lines import Lines

_POLL_SECONDS = 0.02
# For the others to see who was the first to end, and for an error of TensorFlow's to come first.
_STAY_SECONDS = 2.0
_ANSWER_SECONDS = 2.0


class StartWatch:
    """Watches the peers while its block runs, in which TensorFlow starts.

    Where one ends, this process does, with exit code 1: nothing can end TensorFlow's wait for it.

    Args:
        name: this process's task, e.g. "worker 0".
        peers: the tasks that start with it, name -> address.
        lines: to them; the block's end closes them.
    """

    def __init__(self, name: str, peers: Mapping[str, str], lines: Lines):
        self._name = name
        self._peers = peers
        self._lines = lines
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="scalecom-start", daemon=True)

    def __enter__(self) -> "StartWatch":
        self._thread.start()
        return self

    def __exit__(self, kind, error, traceback):
        """Tells the peers that this worker has started, or says who has not.

        Raises:
            TimeoutError: TensorFlow has failed, and somebody does not answer or has not been met.
        """
        self._ended.set()
        self._thread.join()
        try:
            if error is None:
                self._lines.say_started()
            elif isinstance(error, tf.errors.OpError):
                if silent := self._silent():
                    raise TimeoutError(
                        "Expected all workers to start TensorFlow after they had met; "
                        f"{self._name} received no answer from {self._in_words(silent)}. Look "
                        "whether it is stopped or out of reach, and start all again."
                    ) from error
                # Who goes ahead has called everybody before.
                if strange := self._peers.keys() - self._lines.met:
                    raise TimeoutError(
                        "Expected all workers to start TensorFlow after they had met; what "
                        f"answered {self._name} at {self._in_words(strange)} had not come to meet "
                        "it. It is of an earlier start, where one worker was started again by "
                        "itself, or another program: end it, and start all again."
                    ) from error
        finally:
            self._lines.close()

    def _watch(self):
        gone: set[str] = set()
        while not gone and not self._ended.is_set():
            gone = self._lines.hear(_POLL_SECONDS)
        # Those who end because of them, too, are not to be blamed.
        end_at = time.monotonic() + _STAY_SECONDS
        while not self._ended.is_set() and time.monotonic() < end_at:
            self._lines.hear(_POLL_SECONDS)
        if self._ended.is_set():
            return
        print(
            f"tf_scalecom: {self._name} has failed because of {self._in_words(gone)}, which has "
            "ended while TensorFlow started. Look for the cause in the log there; one that ends "
            "without a word may have been killed for want of memory.",
            file=sys.stderr,
            flush=True,
        )
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(1)

    def _silent(self):
        self._lines.ask()
        deadline = time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < deadline and self._lines.names() - self._lines.answered:
            self._lines.hear(_POLL_SECONDS)
        return self._lines.names() - self._lines.answered

    def _in_words(self, names):
        # As TensorFlow and the watchdog name a task.
        return ", ".join(
            f"/job:{name.replace(' ', '/task:')} ({self._peers[name]})" for name in sorted(names)
        )
