"""Where the time of a compressed step goes, on one worker, from TensorFlow's own profile.

    python -m tf_scalecom run -n 2 benchmarks/step_split.py --model 5M

Each moment of a step counts for one phase: that of the operation that runs, the first in the order
of `PHASES` where several do, so that exchange is only what nothing else hides; "other" is what is
left (Python, scheduling). So the parts add up to the step. A worker leads every n-th step; the
others wait for its selection, which counts as exchange. Numbers are means over the middle half of
the steps by duration. Filter and scatter are one operation, whose time is shared out as the core's
two functions take it one by one.
"""

import argparse
import ctypes
import itertools
import os
import pathlib
import statistics
import sys
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf
from step_time import WIDTHS, build_step
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tf_scalecom as sc
from tf_scalecom.ops import native

sys.path.append(str(pathlib.Path(__file__).parents[1] / "custom_ops" / "bench"))
from core_abi import FLOAT32, Tensor

STEP = "measured_step"
PHASES = ("compute", "select", "check and gather", "filter and scatter", "apply", "exchange")
_KERNELS = {
    "ScalecomSelect": "select",
    "ScalecomAnyNonfinite": "check and gather",
    "ScalecomGather": "check and gather",
    "ScalecomUpdate": "filter and scatter",
}


def phase_of(event):
    """The phase of an event "name:Type" of TensorFlow's executor; None for any other event."""
    name, _, kind = event.rpartition(":")
    if kind in _KERNELS:
        return _KERNELS[kind]
    if kind.startswith("Collective"):
        return "exchange"
    if "/update_" in name:
        return "apply"
    if "sequential" in name or "gradient_tape" in name:
        return "compute"
    return None


def profile(step, steps):
    """Runs steps; returns all events as (start, end, name), in ms."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        for number in range(steps):
            with tf.profiler.experimental.Trace(STEP, step_num=number, _r=1):
                step()
        tf.profiler.experimental.stop()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    events = []
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                start = line.timestamp_ns / 1e6 + event.offset_ps / 1e9
                name = plane.event_metadata[event.metadata_id].name
                events.append((start, start + event.duration_ps / 1e9, name))
    return events


def split(start, end, events):
    """Milliseconds of [start, end] by phase, "other" included; they add up to its length."""
    intervals = {phase: [] for phase in PHASES}
    for begin, finish, name in events:
        phase = phase_of(name)
        if phase and begin < end and finish > start:
            intervals[phase].append((max(begin, start), min(finish, end)))
    edges = sorted({start, end, *(t for spans in intervals.values() for s in spans for t in s)})
    times = dict.fromkeys([*PHASES, "other"], 0.0)
    for left, right in itertools.pairwise(edges):
        running = (p for p in PHASES if any(b <= left and right <= f for b, f in intervals[p]))
        times[next(running, "other")] += right - left
    return times


def middle_mean(splits):
    """Phase -> mean over the middle half of the steps by duration."""
    ordered = sorted(splits, key=lambda times: sum(times.values()))
    quarter = len(ordered) // 4
    kept = ordered[quarter : len(ordered) - quarter]
    return {phase: statistics.mean(times[phase] for times in kept) for phase in kept[0]}


def filter_share(elements, chunk_size, chunk_keep):
    """The filter's share of filter and scatter, which are one operation: timed one by one."""
    core = ctypes.CDLL(str(native.LIBRARY))
    kept = -(-elements // chunk_size) * chunk_keep
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal(elements, np.float32),
        rng.standard_normal(elements, np.float32),
        np.tile(np.arange(chunk_keep, dtype=np.uint32), kept // chunk_keep),
        np.zeros(kept, np.float32),
        np.zeros(kept, np.float32),
        np.zeros(elements, np.float32),
    ]
    tail = min(chunk_keep, elements % chunk_size) or 1
    tensor = Tensor(
        elements, chunk_size, chunk_keep, tail, 4, *(array.ctypes.data for array in arrays)
    )
    one, executor = ctypes.c_int64(1), ctypes.c_void_p(None)
    calls = {
        "filter": lambda: core.scalecom_residuals_filter_cpu(
            ctypes.byref(tensor),
            one,
            FLOAT32,
            FLOAT32,
            ctypes.c_float(np.inf),
            ctypes.c_float(1.0),
            executor,
        ),
        "scatter": lambda: core.scalecom_outputs_scatter_cpu(
            ctypes.byref(tensor), one, FLOAT32, FLOAT32, executor
        ),
    }
    times = {name: [] for name in calls}
    for _ in range(9):
        for name, call in calls.items():
            start = time.perf_counter()
            if status := call():
                raise RuntimeError(f"Expected {name} to succeed; received status {status}.")
            times[name].append(time.perf_counter() - start)
    filtering, scattering = (statistics.median(times[name]) for name in calls)
    return filtering / (filtering + scattering)


def with_filter_and_scatter(times, share):
    """The same times with "filter and scatter" as two, `share` of it filter."""
    parts = {}
    for phase, ms in times.items():
        if phase == "filter and scatter":
            parts |= {"filter": share * ms, "scatter": (1 - share) * ms}
        else:
            parts[phase] = ms
    return parts


def main():
    """Profiles the compressed arm and prints the table on the chief."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=WIDTHS, default="5M")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--chunk_keep", type=int, default=1)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = sc.MultiWorkerMirroredStrategy()
    step, _ = build_step(
        strategy,
        WIDTHS[arguments.model],
        lambda: sc.ScaleComOptimizer(
            keras.optimizers.SGD(0.01), 100, chunk_keep=arguments.chunk_keep
        ),
    )
    for _ in range(4):
        step()
    events = profile(step, arguments.steps)
    if strategy.cluster_resolver.task_id:
        return
    led, followed = [], []
    for start, end, name in events:
        if name == STEP:
            times = split(start, end, events)
            (led if times["select"] else followed).append(times)
    columns = [middle_mean(led), middle_mean(followed)]
    columns.append({phase: statistics.mean(c[phase] for c in columns) for phase in columns[0]})
    widths = WIDTHS[arguments.model]
    chunk = 100 * arguments.chunk_keep
    share = filter_share(widths[1] * widths[2], chunk, arguments.chunk_keep)
    columns = [with_filter_and_scatter(column, share) for column in columns]
    print(
        f"{arguments.model}, {strategy.num_replicas_in_sync} workers, {os.cpu_count()} cores, "
        f"{arguments.chunk_keep} of each {chunk}, load {os.getloadavg()[0]:.1f}"
    )
    print(f"| phase | ms, leading | ms, following | ms, mean | share |\n{'|---' * 5}|")
    total = sum(columns[-1].values())
    for phase in columns[0]:
        cells = " | ".join(f"{column[phase]:.1f}" for column in columns)
        print(f"| {phase} | {cells} | {columns[-1][phase] / total:.0%} |")
    print(f"| step | {' | '.join(f'{sum(column.values()):.1f}' for column in columns)} | 100% |")


if __name__ == "__main__":
    main()
