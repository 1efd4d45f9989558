"""A progress bar made of whole lines: readable when several workers share one terminal or a log."""

import time

import keras

WIDTH = 24


class LineProgress(keras.callbacks.Callback):
    """Prints about `lines` progress lines over the whole training, and one after each evaluation.

    Keras's own bar redraws its line, which a launcher that prefixes each worker's lines cannot
    show before the epoch is over.

    Args:
        total_steps: steps of the whole training.
        lines: how many progress lines to print.
    """

    def __init__(self, total_steps: int, lines: int = 30):
        super().__init__()
        self.total_steps = total_steps
        self.every = max(1, total_steps // lines)
        self._step = 0
        self._started = None

    def on_train_batch_end(self, batch, logs=None):
        """Prints a line when it is due: bar, step, loss and accuracy so far, time left."""
        self._step += 1
        if self._started is None:  # the first step compiles; it says nothing about the others
            self._started = time.perf_counter()
            return
        if self._step % self.every and self._step != self.total_steps:
            return
        per_step = (time.perf_counter() - self._started) / (self._step - 1)
        filled = WIDTH * self._step // self.total_steps
        left = round(per_step * (self.total_steps - self._step))
        print(
            f"[{'=' * filled}{'.' * (WIDTH - filled)}] step {self._step}/{self.total_steps}"
            f"  loss {float(logs['loss']):.3f}  accuracy {100 * float(logs['accuracy']):.2f} %"
            f"  {1000 * per_step:.0f} ms/step  {left // 60}:{left % 60:02d} left",
            flush=True,
        )

    def on_epoch_end(self, epoch, logs=None):
        """Prints the test accuracy, when `fit` was given validation data."""
        if logs and "val_accuracy" in logs:
            print(f"  test accuracy {100 * float(logs['val_accuracy']):.2f} %", flush=True)
