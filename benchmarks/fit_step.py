"""What a step of `fit` takes with this package's share of the rows, and as Keras makes it.

    python -m tf_scalecom run -n 2 benchmarks/fit_step.py

The arms take turns in the same processes: what counts is the median of the rounds' ratios. Both
count in each step who has data; the arm "as Keras makes it" divides losses by the number of
replicas and sends each log on its own. Model, batch and data as in `step_time.py`.
"""

import argparse
import contextlib
import os
import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from step_time import BATCH, WIDTHS, dense_layers

import tf_scalecom as sc
from tf_scalecom.compat.keras_trainer import Trainer, trainer_library


@contextlib.contextmanager
def as_keras():
    """Inside, steps are made as if this package had no part in them."""
    hooks = (Trainer, "_make_function"), (trainer_library, "reduce_per_replica")
    ours = [getattr(owner, name) for owner, name in hooks]
    for (owner, name), hook in zip(hooks, ours, strict=True):
        setattr(owner, name, hook.__wrapped__)
    try:
        yield
    finally:
        for (owner, name), hook in zip(hooks, ours, strict=True):
            setattr(owner, name, hook)


# Loss reduction and metrics.
TASKS = {
    "loss": ("sum_over_batch_size", []),
    "loss, accuracy": ("sum_over_batch_size", ["accuracy"]),
    "mean_with_sample_weight": ("mean_with_sample_weight", []),
}


def build(strategy, compressed, reduction, metrics):
    """A model's step, as `fit` calls it, with its data; traced."""
    widths = WIDTHS["5M"]
    rng = np.random.default_rng(0)
    rows = BATCH * strategy.num_replicas_in_sync
    batch = (
        rng.normal(size=(rows, widths[0])).astype("f4"),
        rng.integers(0, widths[-1], rows),
        rng.uniform(size=rows).astype("f4"),
    )
    with strategy.scope():
        model = keras.Sequential(dense_layers(widths))
        inner = keras.optimizers.SGD(0.01)
        model.compile(
            sc.ScaleComOptimizer(inner, 100) if compressed else inner,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction),
            metrics=list(metrics),
        )
    data = iter(
        strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch).repeat(10**6))
    )
    model.make_train_function()
    for _ in range(3):
        model.train_function(data)
    return lambda: model.train_function(data)


def main():
    """Times all arms and prints the table on the chief."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps_per_round", type=int, default=5)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = sc.MultiWorkerMirroredStrategy()
    is_chief = not strategy.cluster_resolver.task_id
    if is_chief:
        print(f"5M, {strategy.num_replicas_in_sync} workers, load {os.getloadavg()[0]:.1f}")
        print(f"{'arm':36}{'ms':>8}{'as Keras':>10}{'ratio':>8}{'quartiles':>14}")
    for compressed in (False, True):
        for task, of_task in TASKS.items():
            steps = {"ours": build(strategy, compressed, *of_task)}
            with as_keras():
                steps["keras"] = build(strategy, compressed, *of_task)
            times = {name: [] for name in steps}
            for _ in range(arguments.rounds):
                for name, step in steps.items():
                    strategy.reduce("SUM", tf.constant(1.0), axis=None)  # all begin at once
                    start = time.perf_counter()
                    for _ in range(arguments.steps_per_round):
                        step()
                    times[name].append((time.perf_counter() - start) / arguments.steps_per_round)
            if is_chief:
                ratios = [a / b for a, b in zip(times["ours"], times["keras"], strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                arm = f"{'compressed' if compressed else 'dense'}: {task}"
                ours, theirs = (1e3 * statistics.median(times[name]) for name in ("ours", "keras"))
                print(
                    f"{arm:36}{ours:8.1f}{theirs:10.1f}{middle:8.3f}{low:8.2f} {high:5.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
