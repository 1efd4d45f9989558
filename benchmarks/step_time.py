"""Step time of dense and compressed training on the workers of one machine, interleaved.

    python -m tf_scalecom run -n 2 benchmarks/step_time.py --model 5M

All arms run in the same processes, round after round, so that the machine's other load hits them
alike; what counts is the ratio of medians. Models and batch are those that peers are commonly
measured with: dense ReLU layers, batch 32 per worker, synthetic data. "dense MWMS" is TensorFlow's
own strategy; "alone" is one worker's forward, backward and update, with nobody else.
"""

import argparse
import os
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import tf_scalecom as sc

WIDTHS = {"5M": (784, 1600, 1600, 800, 10), "25M": (784, 4000, 4000, 1550, 10)}
BATCH = 32


def dense_layers(widths):
    """Of a network whose layers all are dense, from its input on."""
    return [
        keras.Input((widths[0],)),
        *(keras.layers.Dense(width, activation="relu") for width in widths[1:-1]),
        keras.layers.Dense(widths[-1]),
    ]


def build_step(strategy, widths, make_optimizer):
    """A traced training step of one arm; without an optimizer: forward and backward only."""
    with strategy.scope():
        model = keras.Sequential(dense_layers(widths))
        optimizer = make_optimizer() if make_optimizer else None
        if optimizer:
            optimizer.build(model.trainable_variables)
    resolver = strategy.cluster_resolver
    rng = np.random.default_rng(resolver.task_id or 0 if resolver else 0)
    x = tf.constant(rng.normal(size=(BATCH, widths[0])), tf.float32)
    y = tf.constant(rng.integers(0, widths[-1], BATCH))
    variables = model.trainable_variables

    def replica_step():
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(
                keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
            )
        gradients = tape.gradient(loss, variables)
        if optimizer:
            optimizer.apply(gradients, variables)
            return loss
        return tf.add_n([loss, *(tf.reduce_sum(g) for g in gradients)])

    return tf.function(lambda: strategy.run(replica_step)), optimizer


def main():
    """Times all arms and prints the table on the chief."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=WIDTHS, default="5M")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps_per_round", type=int, default=5)
    parser.add_argument("--intra_op_threads", type=int, default=1)
    arguments = parser.parse_args()
    tf.get_logger().setLevel("ERROR")  # arms are functions of one name, which looks like retracing
    tf.config.threading.set_intra_op_parallelism_threads(arguments.intra_op_threads)
    # In this order: a process has one server, which TensorFlow's strategy would start once more.
    stock = tf.distribute.MultiWorkerMirroredStrategy()
    strategy = sc.MultiWorkerMirroredStrategy()

    alone = tf.distribute.OneDeviceStrategy("CPU:0")

    def sgd():
        return keras.optimizers.SGD(0.01)

    def adam():
        return keras.optimizers.Adam(0.001, beta_1=0.0)

    def compressed(make=sgd, ratio=100, **arguments):
        return lambda: sc.ScaleComOptimizer(make(), ratio, **arguments)

    def reduced_by(method):
        return lambda: sc.CompressedOptimizer(sgd(), method)

    arms = {
        "compute only": (strategy, None),
        "alone, SGD": (alone, sgd),
        "alone, SGD, wrapped": (alone, compressed()),
        "dense MWMS": (stock, sgd),
        "dense": (strategy, sgd),
        "compressed 100x": (strategy, compressed()),
        "compressed 100x, chunk_keep 10": (strategy, compressed(chunk_keep=10)),
        "bfloat16 values, 92x": (strategy, compressed(ratio=92, value_dtype="bfloat16")),
        "shares 100x": (strategy, reduced_by(sc.methods.SharesTopK(100))),
        "owners 92x, bfloat16": (
            strategy,
            reduced_by(sc.methods.OwnersTopK(92, value_dtype="bfloat16")),
        ),
        "PowerSGD rank 2": (strategy, reduced_by(sc.methods.PowerSGD(rank=2))),
        "alone, Adam(beta_1=0)": (alone, adam),
        "compressed 100x, Adam(beta_1=0)": (strategy, compressed(adam)),
    }
    widths = WIDTHS[arguments.model]
    arms = {name: build_step(where, widths, maker) for name, (where, maker) in arms.items()}
    for step, _ in arms.values():
        for _ in range(3):
            step()
    times = {name: [] for name in arms}
    for _ in range(arguments.rounds):
        for name, (step, _) in arms.items():
            strategy.reduce("SUM", tf.constant(1.0), axis=None)  # all workers start the arm at once
            start = time.perf_counter()
            for _ in range(arguments.steps_per_round):
                step()
            times[name].append((time.perf_counter() - start) / arguments.steps_per_round)
    if strategy.cluster_resolver.task_id:
        return
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(
        f"{arguments.model}, {strategy.num_replicas_in_sync} workers, {os.cpu_count()} cores, "
        f"{sc.ops.backend()[0].name} kernels, load {os.getloadavg()[0]:.1f}"
    )
    beside = ("compute only", "dense MWMS")
    print(
        f"{'arm':32}{'ms median':>10}{'min':>8}{'max':>8}"
        + "".join(f"{'/ ' + b:>15}" for b in beside)
    )
    for name, values in times.items():
        low, high = 1e3 * min(values), 1e3 * max(values)
        ratios = "".join(f"{medians[name] / medians[b]:15.2f}" for b in beside)
        print(f"{name:32}{1e3 * medians[name]:10.1f}{low:8.1f}{high:8.1f}{ratios}")


if __name__ == "__main__":
    main()
