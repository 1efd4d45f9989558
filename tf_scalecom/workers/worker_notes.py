"""What a worker tells its peers about itself, in the key-value store that the first one keeps."""

import contextlib
import threading

import tensorflow as tf

from tf_scalecom.compat.tensorflow_runtime import eager_context

_READ_SECONDS = 1.0
_STOP_SECONDS = 2.0


class WorkerNote:
    """One worker's note, which it may change.

    TensorFlow gives the calls that change it no limit: they do not return while the first worker is
    stopped. A thread of their own makes them, and nobody waits for it.

    Args:
        task: who it is about, e.g. "worker 1".
    """

    def __init__(self, task: str):
        self._key = _key(task)
        self.text: str | None = None
        self._changed = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="scalecom-note", daemon=True)
        self._thread.start()

    def write(self, text: str | None) -> None:
        """Replaces the note, soon; None takes it down."""
        if text != self.text:
            self.text = text
            self._changed.set()

    def stop(self) -> None:
        """Ends the thread, if it can be ended."""
        self._ended = True
        self._changed.set()
        self._thread.join(_STOP_SECONDS)

    def _work(self):
        while self._changed.wait() and not self._ended:
            self._changed.clear()
            text = self.text
            with contextlib.suppress(tf.errors.OpError):  # all it is good for are messages
                # What is there already cannot be overwritten.
                eager_context().delete_config_key_value(self._key)
                if text is not None:
                    eager_context().set_config_key_value(self._key, text)


def read(task: str) -> str | None:
    """The note of a peer; None if there is none, or no answer within a second."""
    try:
        return eager_context().get_config_key_value(_key(task), int(_READ_SECONDS * 1000))
    except tf.errors.OpError:
        return None


def _key(task):
    return f"tf_scalecom/waits/{task}"
