"""What training waits for its backups: written in the background, and by steps that wait for them.

    python -m tf_scalecom run -n 2 benchmarks/backup_wait.py --model 5M

Model and data are those of step_time.py. The arms take turns, backup after backup, in one call to
`fit`. What a backup costs is the time of the steps from its begin until the next one over that of
as many undisturbed steps, the medians of those long after a backup; what a step waits is the time
of the callback in the step that begins the backup. The first worker's clock is the one reported.
"""

import argparse
import os
import statistics
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf
from step_time import BATCH, WIDTHS, dense_layers

import tf_scalecom as sc
from tf_scalecom.state import training_state

ARMS = ("in the background", "waited for")


class TimedBackups(sc.callbacks.BackupAndRestore):
    """Notes for each step how long the callback took in it, and when it ended."""

    def __init__(self, folder, save_freq):
        super().__init__(folder, save_freq=save_freq)
        self.waited, self.ended_at = [], []

    def on_train_batch_end(self, batch, logs=None):
        start = time.perf_counter()
        super().on_train_batch_end(batch, logs)
        is_begin = (batch + 1) % self.save_freq == 0
        if is_begin and (batch + 1) // self.save_freq % len(ARMS) == 0:
            self._folder.finish()
        self.ended_at.append(time.perf_counter())
        self.waited.append(self.ended_at[-1] - start)


def main():
    """Times the steps and prints the table on the chief."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=WIDTHS, default="5M")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--save_freq", type=int, default=40, help="steps between two backups")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = sc.MultiWorkerMirroredStrategy()
    widths = WIDTHS[arguments.model]
    with strategy.scope():
        model = keras.Sequential(dense_layers(widths))
        model.compile(
            sc.ScaleComOptimizer(keras.optimizers.SGD(0.01), 100),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    rng = np.random.default_rng(0)
    rows = BATCH * strategy.num_replicas_in_sync
    x, y = rng.normal(size=(rows, widths[0])).astype("f"), rng.integers(0, widths[-1], rows)
    every = arguments.save_freq
    steps = (len(ARMS) * arguments.rounds + 1) * every
    shared = os.environ["TF_SCALECOM_SEED"]  # of this run of the launcher
    folder = os.path.join(tempfile.gettempdir(), f"tf_scalecom-backups-{shared}")
    backups = TimedBackups(folder, every)
    model.fit(tf.data.Dataset.from_tensors((x, y)).repeat(steps), verbose=0, callbacks=[backups])
    state = sum(part.nbytes for kept in training_state.read(model).values() for part in kept.parts)
    if strategy.cluster_resolver.task_id:
        return
    lengths = np.diff(backups.ended_at)  # [i]: of step i + 1
    print(
        f"{arguments.model}, {strategy.num_replicas_in_sync} workers, {os.cpu_count()} cores, "
        f"{state / 2**20:.0f} MiB of state on the first worker, {arguments.rounds} rounds, load "
        f"{os.getloadavg()[0]:.1f}; medians"
    )
    print(f"{'backups':20}{'step, ms':>10}{'it waits, ms':>14}{'backup costs, ms':>18}{'steps':>8}")
    for place in range(len(ARMS)):
        begins = range((place + 1) * every - 1, steps - every, len(ARMS) * every)
        spans = [lengths[begin - 1 : begin - 1 + every] for begin in begins]
        quiet = statistics.median(np.concatenate([span[every // 2 :] for span in spans]))
        waits = statistics.median(backups.waited[begin] for begin in begins)
        costs = statistics.median(span.sum() - every * quiet for span in spans)
        print(
            f"{ARMS[place]:20}{1e3 * quiet:10.1f}{1e3 * waits:14.1f}{1e3 * costs:18.1f}"
            f"{costs / quiet:8.1f}"
        )


if __name__ == "__main__":
    main()
