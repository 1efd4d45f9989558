"""One worker of the soak: a small network, trained for long, that counts what its process holds.

`python -m tf_scalecom run` starts it; it goes on from the backup in the soak's folder.
"""

import argparse
import hashlib
import pathlib

import keras
import numpy as np
import tensorflow as tf
from samples import SampleFile

import tf_scalecom as sc

FEATURES, CLASSES, BATCH = 32, 10, 16
STEPS_PER_EPOCH = 500
EPOCHS_PER_VALIDATION = 4


def build(strategy):
    """Some thousand weights, with moving averages, dropout and momentum."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((FEATURES,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(CLASSES),
            ]
        )
        model.compile(
            sc.ScaleComOptimizer(keras.optimizers.SGD(0.02, momentum=0.5), 20),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    return model


class Samples(keras.callbacks.Callback):
    """Writes a sample every few steps."""

    def __init__(self, file, every):
        super().__init__()
        self._file, self._every = file, every

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations.numpy())
        if step % self._every == 0:
            weights = b"".join(v.numpy().tobytes() for v in self.model.trainable_variables)
            self._file.write(step, hashlib.blake2b(weights, digest_size=8).hexdigest())


def main():
    """Trains until the last step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--sample_every", type=int, required=True)
    parser.add_argument("--backup_every", type=int, required=True)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = sc.MultiWorkerMirroredStrategy()
    rank = strategy.cluster_resolver.task_id
    model = build(strategy)
    # On all workers; each takes its part of every batch.
    steps = min(STEPS_PER_EPOCH, arguments.steps)
    batch = BATCH * strategy.num_replicas_in_sync
    inputs = np.random.default_rng(0).normal(size=(steps * batch, FEATURES)).astype("float32")
    labels = inputs[:, :CLASSES].argmax(axis=1)
    backup = sc.callbacks.BackupAndRestore(arguments.folder / "backup", arguments.backup_every)
    samples = Samples(SampleFile(arguments.folder, f"worker {rank}"), arguments.sample_every)
    model.fit(
        inputs, labels, batch_size=batch, epochs=arguments.steps // steps, verbose=0,
        validation_data=(inputs[:batch], labels[:batch]), validation_freq=EPOCHS_PER_VALIDATION,
        callbacks=[backup, samples],
    )  # fmt: skip


if __name__ == "__main__":
    main()
