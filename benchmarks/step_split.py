"""Where the time of a compressed step goes, on one worker, from TensorFlow's own profile.

    python -m tf_scalecom run -n 2 benchmarks/step_split.py --model 5M

Each moment of a step counts for one phase: that of the operation that runs, the first in the order
of `PHASES` where several do, so that exchange is only what nothing else hides; "other" is what is
left (Python, scheduling). So the parts add up to the step. A worker leads every n-th step, and
selects where it compensates; the others wait for its selection, which counts as exchange. Numbers
are means over the middle half of the steps by duration.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import tempfile

import keras
import tensorflow as tf
from step_time import WIDTHS, build_step
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tf_scalecom as sc

STEP = "measured_step"
PHASES = ("compute", "compensate", "gather", "filter", "scatter", "apply", "exchange")
_KERNELS = {
    "ScalecomCompensate": "compensate",
    "ScalecomGather": "gather",
    "ScalecomFilter": "filter",
    "ScalecomScatter": "scatter",
    "ScalecomDescend": "apply",
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
    times = middle_mean([split(*step, events) for *step, name in events if name == STEP])
    print(
        f"{arguments.model}, {strategy.num_replicas_in_sync} workers, {os.cpu_count()} cores, "
        f"{arguments.chunk_keep} of each {100 * arguments.chunk_keep}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print("| phase | ms | share |\n|---|---|---|")
    total = sum(times.values())
    for phase, ms in times.items():
        print(f"| {phase} | {ms:.1f} | {ms / total:.0%} |")
    print(f"| step | {total:.1f} | 100% |")


if __name__ == "__main__":
    main()
