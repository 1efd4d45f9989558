"""One worker of a training run that is killed once: `restarted_worker.py FOLDER`.

The gradients of all workers add up to 2, so that what training did can be counted.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tf_scalecom as sc

EPOCHS, STEPS, DIES_IN_EPOCH, DIES_IN_STEP = 4, 6, 2, 3
# After each step before: the backup of the last epoch's end is written meanwhile.
REST_SECONDS = 0.3


class DieOnce(keras.callbacks.Callback):
    """Kills the worker in the middle of an epoch, the first time."""

    def __init__(self, died):
        super().__init__()
        self._died = died

    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self._epoch != DIES_IN_EPOCH or self._died.exists():
            return
        if batch == DIES_IN_STEP:
            self._died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(REST_SECONDS)


def main(folder):
    """Train, and write down where it ended."""
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    callbacks = [sc.callbacks.BackupAndRestore(folder / "backup")]
    if rank == 1:
        callbacks.append(DieOnce(folder / "died"))
    strategy = sc.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((2000,)), layer])
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0), compression_ratio=100)
        model.compile(optimizer, loss=lambda _, prediction: prediction)
    rows = tf.data.Dataset.from_tensors((2 * tf.ones([4, 2000]), tf.zeros([4, 1]))).repeat()
    model.fit(rows, epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0, callbacks=callbacks)
    (residual,) = next(iter(optimizer.residuals.values()))
    np.savez(
        folder / f"end-{rank}.npz",
        iterations=optimizer.iterations.numpy(),
        kernel=layer.kernel.numpy().ravel(),
        residual=residual.ravel(),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
