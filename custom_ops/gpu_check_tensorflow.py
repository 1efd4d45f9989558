#!/usr/bin/env python3
"""The first look at training on a GPU: for a machine with TensorFlow's GPU build and one card.

    python custom_ops/gpu_check_tensorflow.py [--devices cpu] [--trace FOLDER]

Two virtual GPUs on the card train as two replicas of MirroredStrategy. What is checked: which
kernels are in use, and that they are those of the GPU; that gradients which are known beforehand
are exchanged as on two CPUs, to the bit, residuals too; that fit() learns, and both replicas hold
the same weights to the bit; that a step which is not finite is skipped. Then a trace of some steps,
and what the card did in them, copies to the host by number. Exit code: 0, all is right; 1, not; 77,
there is no GPU. Leaves gpu_check_tensorflow.md, one text for custom_ops/README.md. With
`--devices cpu` two logical CPUs stand in, to try the script.
"""

import argparse
import collections
import os
import pathlib
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
# Two virtual GPUs are one card to NCCL, which refuses that: TensorFlow's own ring joins them.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import keras
import numpy as np
import tensorflow as tf

import tf_scalecom as sc
from tf_scalecom import ops

STEPS = 6
SHAPES = [(1000, 300), (257,), (64, 64)]
REPORT = pathlib.Path("gpu_check_tensorflow.md")


class Report:
    """Lines for people, and whether all was right."""

    def __init__(self):
        self.lines, self.is_right = [], True

    def say(self, line: str) -> None:
        print(line, flush=True)
        self.lines.append(line)

    def check(self, what: str, is_right: bool) -> None:
        self.say(f"- {what}: {'right' if is_right else '**WRONG**'}")
        self.is_right &= bool(is_right)


def two_of(kind: str) -> list[str]:
    """Names of two logical devices on the first physical one of a kind."""
    physical = tf.config.list_physical_devices(kind)
    if not physical:
        print(
            f"gpu_check_tensorflow.py: expected a {kind} that TensorFlow sees; received none: "
            "`python -m tf_scalecom doctor` says more",
            file=sys.stderr,
        )
        sys.exit(77)
    limit = {} if kind == "CPU" else {"memory_limit": 4096}
    configuration = [tf.config.LogicalDeviceConfiguration(**limit) for _ in range(2)]
    tf.config.set_logical_device_configuration(physical[0], configuration)
    return [f"{kind}:{i}" for i in range(2)]


def exchanged(devices: list[str]) -> list[np.ndarray]:
    """Weights and residuals after steps on known gradients, one of which is not finite."""
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=sc.ScaleComAllReduce.for_devices(devices)
    )
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=(STEPS, 2, *s)).astype(np.float32) for s in SHAPES]
    gradients[1][2, 1, 7] = np.nan
    with strategy.scope():
        variables = [
            keras.Variable(np.zeros(s, np.float32), name=f"v{i}") for i, s in enumerate(SHAPES)
        ]
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0), compression_ratio=25, beta=0.5)
        optimizer.build(variables)

    @tf.function
    def step(*own):
        strategy.run(lambda *g: optimizer.apply(list(g), variables), args=own)

    for t in range(STEPS):
        step(
            *(
                strategy.experimental_distribute_values_from_function(
                    lambda context, g=g, t=t: tf.constant(g[t, context.replica_id_in_sync_group])
                )
                for g in gradients
            )
        )
    assert int(optimizer.skipped_steps.numpy()) == 1
    weights = [v.numpy() for variable in variables for v in copies(strategy, variable)]
    residuals = [r for v in variables for r in optimizer.residuals.get(v.path, ())]
    return [*weights, *residuals]


def copies(strategy, variable) -> list[tf.Tensor]:
    """Of each replica."""
    return [tf.convert_to_tensor(v) for v in strategy.experimental_local_results(variable.value)]


def train(devices: list[str], report: Report, trace: pathlib.Path) -> None:
    """fit() on both devices; a trace of its last steps."""
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=sc.ScaleComAllReduce.for_devices(devices)
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4096, 256)).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=(256, 10)), axis=1)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(2048, activation="relu") for _ in range(2)]
            + [keras.layers.Dense(10)]
        )
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), compression_ratio=100)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(256).repeat()
    history = model.fit(data, epochs=4, steps_per_epoch=16, verbose=0).history
    begun = time.perf_counter()
    with tf.profiler.experimental.Profile(str(trace)):
        model.fit(data, epochs=1, steps_per_epoch=16, verbose=0)
    seconds = time.perf_counter() - begun
    losses = [round(float(value), 3) for value in history["loss"]]
    report.check(f"fit() learns, loss {losses}", losses[-1] < 0.8 * losses[0])
    held = [[c.numpy() for c in copies(strategy, w)] for w in model.trainable_variables]
    report.check(
        "both replicas hold the same weights, to the bit",
        all(len(own) == 2 and np.array_equal(*own) for own in held),
    )
    report.say(f"- 16 steps under the profiler: {1e3 * seconds / 16:.1f} ms each")


def spent(trace: pathlib.Path) -> list[tuple[str, int, float]]:
    """What a device did under the profiler: name, number, ms; the longest first."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # its place is TensorFlow's own

    totals: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0.0])
    for path in trace.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        for plane in space.planes:
            if not plane.name.startswith("/device:GPU"):
                continue
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        total = totals[plane.event_metadata[event.metadata_id].name]
                        total[0] += 1
                        total[1] += event.duration_ps / 1e9
    rows = [(name, int(number), ms) for name, (number, ms) in totals.items()]
    return sorted(rows, key=lambda row: -row[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--trace", type=pathlib.Path, help="where the trace stays")
    arguments = parser.parse_args()
    is_gpu = arguments.devices == "gpu"
    two_cpus = two_of("CPU")
    devices = two_of("GPU") if is_gpu else two_cpus
    report = Report()
    name = "two logical CPUs"
    if is_gpu:
        details = tf.config.experimental.get_device_details(
            tf.config.list_physical_devices("GPU")[0]
        )
        name = (
            f"{details.get('device_name')}, compute capability {details.get('compute_capability')}"
        )
    kernels, reason = ops.backend()
    report.say(f"### {name}\n")
    report.say(
        f"TensorFlow {tf.version.VERSION}, Keras {keras.__version__}; {kernels.name}: {reason}\n"
    )
    report.check("the native kernels are in use", kernels.name == "native")
    expected = exchanged(two_cpus)
    received = exchanged(devices)
    report.check(
        f"{STEPS} exchanges and a skipped step, as on two CPUs, to the bit",
        len(expected) == len(received)
        and all(np.array_equal(a, b) for a, b in zip(expected, received, strict=True)),
    )
    with tempfile.TemporaryDirectory() as folder:
        trace = arguments.trace or pathlib.Path(folder)
        train(devices, report, trace)
        if is_gpu:
            rows = spent(trace)
            report.say("\n| on the card, 16 steps | number | ms |\n|---|---|---|")
            for what, number, ms in rows[:20]:
                report.say(f"| {what[:80]} | {number} | {ms:.2f} |")
            to_host = sum(number for what, number, _ in rows if "MemcpyD2H" in what)
            report.say(f"\nCopies to the host: {to_host / 16:.1f} a step.")
    REPORT.write_text("\n".join(report.lines) + "\n")
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
