"""Measures training steps from inside `fit`: their time, and the bytes they put on the loopback."""

import pathlib
import time

import keras

LOOPBACK_SENT = pathlib.Path("/sys/class/net/lo/statistics/tx_bytes")


class StepMeter(keras.callbacks.Callback):
    """Counts seconds and loopback bytes over training steps, leaving out everything between epochs.

    One machine-wide counter sees all workers, so the bytes are divided by their number; other
    programs that talk over loopback meanwhile are counted too. Headers, acknowledgements, Keras's
    own reductions and the runtime's heartbeats are in it: this is traffic, not payload.

    Args:
        num_workers: worker processes on this machine that train together.
        skip_steps: steps at the start of training left out: compilation and dense warm-up.
    """

    def __init__(self, num_workers: int, skip_steps: int):
        super().__init__()
        self.num_workers = num_workers
        self.skip_steps = skip_steps
        self.steps = 0
        self.seconds = 0.0
        self.loopback_bytes = 0
        self._seen = 0
        self._before = None

    @property
    def seconds_per_step(self) -> float | None:
        """Mean time of a step, None when no step was measured."""
        return self.seconds / self.steps if self.steps else None

    @property
    def bytes_per_step_and_worker(self) -> float | None:
        """Mean loopback traffic a worker sent in a step; None without the counter or any step."""
        if not self.steps or not LOOPBACK_SENT.exists():
            return None
        return self.loopback_bytes / self.steps / self.num_workers

    def on_epoch_begin(self, epoch, logs=None):
        """Forgets the last reading: evaluation and its traffic lie between epochs."""
        self._before = None

    def on_train_batch_end(self, batch, logs=None):
        """Adds what happened since the previous step of the same epoch ended."""
        now = time.perf_counter()
        sent = int(LOOPBACK_SENT.read_text()) if LOOPBACK_SENT.exists() else 0
        self._seen += 1
        if self._before is not None:
            self.steps += 1
            self.seconds += now - self._before[0]
            self.loopback_bytes += sent - self._before[1]
        # A step counts when the reading that opens it comes after the last step left out.
        self._before = (now, sent) if self._seen >= self.skip_steps else None
