"""What `CompressionMonitor` costs: epochs of `fit` with it by epochs without, in one run.

    python -m tf_scalecom run -n 2 benchmarks/monitor.py --model 5M

Model, batch and data are those of step_time.py. The arms take turns in the same processes; what
counts is an epoch's time by that of the unmonitored epoch in the same round, median over the
rounds. The first worker, which writes the files, is the one reported. Its processor time is less
disturbed by the machine's other load than the time on the clock.
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


def build(strategy, widths):
    with strategy.scope():
        model = keras.Sequential(dense_layers(widths))
        model.compile(
            sc.ScaleComOptimizer(keras.optimizers.SGD(0.01), 100),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    return model


def main():
    """Times all arms and prints the table on the chief."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=WIDTHS, default="5M")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50, help="steps of an epoch")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = sc.MultiWorkerMirroredStrategy()
    widths = WIDTHS[arguments.model]
    rng = np.random.default_rng(0)
    rows = BATCH * strategy.num_replicas_in_sync
    x, y = rng.normal(size=(rows, widths[0])).astype("f"), rng.integers(0, widths[-1], rows)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    with tempfile.TemporaryDirectory() as folder:

        def monitor(name, update_freq):
            path = os.path.join(folder, name)
            return [sc.callbacks.CompressionMonitor(path, f"{path}.csv", update_freq)]

        arms = {
            "without": [],
            "default": monitor("default", "epoch"),
            "update_freq=10": monitor("often", 10),
        }
        models = {name: build(strategy, widths) for name in arms}
        times = {name: [] for name in arms}
        for turn in range(1 + arguments.rounds):  # the first traces
            for name, callbacks in arms.items():
                strategy.reduce("SUM", tf.constant(1.0), axis=None)  # all workers start at once
                start = time.perf_counter(), time.process_time()
                models[name].fit(
                    data, steps_per_epoch=arguments.steps, verbose=0, callbacks=callbacks
                )
                if turn:
                    times[name].append(
                        (time.perf_counter() - start[0], time.process_time() - start[1])
                    )
    if strategy.cluster_resolver.task_id:
        return
    print(
        f"{arguments.model}, {strategy.num_replicas_in_sync} workers, {os.cpu_count()} cores, "
        f"epochs of {arguments.steps} steps, {arguments.rounds} rounds, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'arm':16}{'ms a step':>10}{'/ without':>11}{'quartiles':>16}{'CPU / without':>15}")
    for name, values in times.items():
        wall, cpu = (
            [own[i] / without[i] for own, without in zip(values, times["without"], strict=True)]
            for i in (0, 1)
        )
        low, middle, high = statistics.quantiles(wall, n=4)
        step = 1e3 * statistics.median(value[0] for value in values) / arguments.steps
        print(
            f"{name:16}{step:10.1f}{middle:11.3f}{low:9.3f} -{high:6.3f}"
            f"{statistics.median(cpu):15.3f}"
        )


if __name__ == "__main__":
    main()
