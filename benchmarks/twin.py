"""The plain TensorFlow kernels, compiled by XLA, against the native ones: one thread, one tensor.

    python benchmarks/twin.py

All run in turn, round after round, so that the machine's other load weighs on all alike; what
counts is the median over rounds of the twin's time to the native one's.
"""

import argparse
import os
import statistics
import time

import tensorflow as tf

from tf_scalecom.ops import native, xla
from tf_scalecom.wire.layout import Layout, tensor_layout

SELECTIONS = {"1 of 100": dict(chunk_keep=1), "10 of 1000": dict(chunk_keep=10)}


def kernel_calls(kernels, layout, gradient, residual, compiled):
    """Name -> function without arguments that runs one kernel on one replica's tensor."""
    gradients, residuals = [gradient], [residual]
    words = native.select(gradients, residuals, layout)
    nonfinite, no_limit = native.any_nonfinite(gradients, residuals), float("inf")
    values = native.gather(gradients, residuals, words, nonfinite, layout, no_limit)
    calls = {
        "select": lambda: kernels.select(gradients, residuals, layout),
        "finite check": lambda: kernels.any_nonfinite(gradients, residuals),
        "gather": lambda: kernels.gather(gradients, residuals, words, nonfinite, layout, no_limit),
        "update": lambda: kernels.update(
            gradients, residuals, words, values, tf.constant(True), layout, no_limit
        ),
    }
    return {
        name: tf.function(call, jit_compile=compiled, autograph=False)
        for name, call in calls.items()
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
            (kernel, way): call
            for way, (kernels, compiled) in ways.items()
            for kernel, call in kernel_calls(kernels, layout, gradient, residual, compiled).items()
        }
        times = times_in_turn(calls, arguments.rounds)
        kernels = dict.fromkeys(kernel for kernel, _ in calls)
        for way in ways:
            times["all", way] = [
                sum(parts) for parts in zip(*(times[k, way] for k in kernels), strict=True)
            ]
        print(f"\n| {selection} | native ms | XLA ms | / native | plain ms | / native |")
        print("|---|---|---|---|---|---|")
        for kernel in [*kernels, "all"]:
            cells = [f"{1e3 * statistics.median(times[kernel, 'native']):.1f}"]
            for way in ("XLA", "plain"):
                ratios = (
                    t / n for t, n in zip(times[kernel, way], times[kernel, "native"], strict=True)
                )
                cells.append(f"{1e3 * statistics.median(times[kernel, way]):.1f}")
                cells.append(f"{statistics.median(ratios):.1f}")
            print(f"| {kernel} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
