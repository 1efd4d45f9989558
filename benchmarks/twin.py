"""The plain TensorFlow kernels, compiled by XLA, against the native ones: one thread, one tensor.

    python benchmarks/twin.py

A step is all kernels of one replica, and its gradient. All run in turn, round after round, so that
the machine's other load weighs on all alike; what counts is the median over rounds of the twin's
time to the native one's.
"""

import argparse
import os
import statistics
import time

import tensorflow as tf

from tf_scalecom.ops import native, xla
from tf_scalecom.wire.layout import Layout, tensor_layout

SELECTIONS = {"1 of 100": dict(chunk_keep=1), "10 of 1000": dict(chunk_keep=10)}


def steps(kernels, layout, source, residual, compiled):
    """Name -> function without arguments: one replica's kernels of a step."""

    def step(leads):
        gradient = tf.negative(source)  # one that nobody else holds, as in training
        values, words, nonfinite = kernels.compensate([gradient], [residual], leads, layout)
        selected, unsent = kernels.gather(values, words, nonfinite, layout, float("inf"))
        free = kernels.filter_residuals(unsent, [residual], tf.equal(nonfinite, 0), layout)
        return kernels.scatter(words, selected, layout, free)

    compiled_step = tf.function(step, jit_compile=compiled, autograph=False)
    return {
        "leading": lambda: compiled_step(tf.constant(True)),
        "following": lambda: compiled_step(tf.constant(False)),
    }


def times_in_turn(calls, rounds):
    """Key -> seconds of each round."""
    for call in calls.values():
        for _ in range(2):  # traces, compiles, allocates
            call()
    times = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            times[key].append(time.perf_counter() - start)
    return times


def main():
    """Prints one table a selection."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    gradient = tf.random.normal([arguments.elements])
    residual = tf.Variable(tf.random.normal([arguments.elements]))
    ways = {"native": (native, False), "XLA": (xla, True), "plain": (xla, False)}
    print(f"{arguments.elements:,} float32 elements, 1 thread, load {os.getloadavg()[0]:.1f}")
    for selection, keep in SELECTIONS.items():
        layout = Layout((tensor_layout("w", gradient.shape, "float32", 100, **keep),))
        calls = {
            (step, way): call
            for way, (kernels, compiled) in ways.items()
            for step, call in steps(kernels, layout, gradient, residual, compiled).items()
        }
        times = times_in_turn(calls, arguments.rounds)
        print(f"\n| {selection} | native ms | XLA ms | / native | plain ms | / native |")
        print("|---|---|---|---|---|---|")
        for step in dict.fromkeys(step for step, _ in calls):
            cells = [f"{1e3 * statistics.median(times[step, 'native']):.1f}"]
            for way in ("XLA", "plain"):
                ratios = (
                    t / n for t, n in zip(times[step, way], times[step, "native"], strict=True)
                )
                cells.append(f"{1e3 * statistics.median(times[step, way]):.1f}")
                cells.append(f"{statistics.median(ratios):.1f}")
            print(f"| {step} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
