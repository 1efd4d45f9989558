"""Measures training steps from inside `fit`: their time, and the bytes they put on the loopback."""

import pathlib
import statistics
import time

import keras

# Of this process's network; the counters in /sys are those of whoever mounted it.
NETWORK_DEVICES = pathlib.Path("/proc/self/net/dev")
WINDOW = 20


class StepMeter(keras.callbacks.Callback):
    """Medians of time and loopback bytes per step, over windows of 20 steps of one epoch.

    One machine-wide counter sees all workers, so the bytes are divided by their number. It also
    sees what other programs send over loopback meanwhile: hence the median, which their bursts do
    not move. Headers, acknowledgements, Keras's own reductions and the runtime's heartbeats are
    always in it: this is traffic, not payload.

    Args:
        num_workers: worker processes on this machine that train together.
        ignored_steps: steps at the start of training left out: compilation and warm-up.
    """

    def __init__(self, num_workers: int, ignored_steps: int):
        super().__init__()
        self.num_workers = num_workers
        self.ignored_steps = ignored_steps
        self._steps_seen = 0
        self._window_start = None  # (steps seen, seconds, bytes) when the window was opened
        self._window_seconds = []
        self._window_bytes = []

    @property
    def seconds_per_step(self) -> float | None:
        """Median time of a step; None when no window was filled."""
        return statistics.median(self._window_seconds) / WINDOW if self._window_seconds else None

    @property
    def bytes_per_step_and_worker(self) -> float | None:
        """Median traffic of a worker in a step; None without a counter or a filled window."""
        if not self._window_bytes or _loopback_sent() is None:
            return None
        return statistics.median(self._window_bytes) / WINDOW / self.num_workers

    def on_epoch_begin(self, epoch, logs=None):
        """Drops the open window: evaluation and its traffic lie between epochs."""
        self._window_start = None

    def on_train_batch_end(self, batch, logs=None):
        """Closes the window when it is full, and opens the next."""
        self._steps_seen += 1
        if self._window_start is not None and self._steps_seen < self._window_start[0] + WINDOW:
            return
        now = (self._steps_seen, time.perf_counter(), _loopback_sent() or 0)
        if self._window_start is not None:
            self._window_seconds.append(now[1] - self._window_start[1])
            self._window_bytes.append(now[2] - self._window_start[2])
        if self._steps_seen >= self.ignored_steps:
            self._window_start = now


def _loopback_sent() -> int | None:
    """Bytes sent over the loopback so far; None without a counter."""
    if not NETWORK_DEVICES.exists():
        return None
    (line,) = (s for s in NETWORK_DEVICES.read_text().splitlines() if s.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[8])
