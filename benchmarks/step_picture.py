"""Draws one compressed step of a worker as a timeline: docs/pictures/step_profile.png.

    python -m tf_scalecom run -n 2 benchmarks/step_picture.py --model 25M

From TensorFlow's own profile, as `step_split` takes it: the step of median length among those that
the chief leads, and among those that it follows. A bar is an operation; exchange includes the wait
for the other workers.
"""

import argparse
import os
import pathlib

import keras
import tensorflow as tf
from step_split import PHASES, STEP, phase_of, profile
from step_time import WIDTHS, build_step

import tf_scalecom as sc

PICTURE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "pictures" / "step_profile.png"
STEPS = 24
# By default the 25M model has one bucket, and nothing to see of one that leaves early.
BUCKET_KIB = 128
ROLES = ("leads: selects, sends the offsets", "follows: receives the offsets")


def bars_of(start, end, events):
    """Phase -> [(ms from the step's start, ms long)] of its operations."""
    bars = {phase: [] for phase in PHASES}
    for begin, finish, name in events:
        phase = phase_of(name)
        if phase and start <= begin < end:
            bars[phase].append((begin - start, finish - begin))
    return bars


def middle_steps(events):
    """(length in ms, bars) of the median step that leads, and of the one that follows."""
    leads, follows = [], []
    for start, end, name in events:
        if name == STEP:
            sends = any("CollectiveBcastSend" in n for b, _, n in events if start <= b < end)
            (leads if sends else follows).append((end - start, bars_of(start, end, events)))
    return [sorted(steps, key=lambda s: s[0])[len(steps) // 2] for steps in (leads, follows)]


def draw(steps, title):
    """Writes the picture: a panel a step, a lane a phase, the same scale of time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(steps), 1, figsize=(10, 6), sharex=True)
    colours = pyplot.get_cmap("tab10").colors
    for (length, bars), role, ax in zip(steps, ROLES, axes, strict=True):
        for lane, phase in enumerate(PHASES):
            ax.broken_barh(bars[phase], (lane - 0.4, 0.8), color=colours[lane])
        ax.set_yticks(range(len(PHASES)), PHASES)
        ax.invert_yaxis()
        ax.axvline(length, color="black", lw=1)
        ax.grid(axis="x", alpha=0.3)
        ax.set_title(f"This worker {role}: {length:.1f} ms", fontsize=10)
    axes[-1].set_xlabel("ms since the step began")
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=80)


def main():
    """Profiles the compressed arm and draws the picture on the chief."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=WIDTHS, default="25M")
    model = parser.parse_args().model
    tf.config.threading.set_intra_op_parallelism_threads(1)
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=BUCKET_KIB << 10)
    strategy = sc.MultiWorkerMirroredStrategy(communication_options=options)
    step, _ = build_step(
        strategy,
        WIDTHS[model],
        lambda: sc.ScaleComOptimizer(keras.optimizers.SGD(0.01), 100),
    )
    for _ in range(4):
        step()
    events = profile(step, STEPS)
    if strategy.cluster_resolver.task_id == 0:
        title = (
            f"One step: {model} parameters, 100x, buckets of {BUCKET_KIB} KiB, "
            f"{strategy.num_replicas_in_sync} workers on {os.cpu_count()} cores, "
            f"unshaped loopback, load {os.getloadavg()[0]:.1f}"
        )
        draw(middle_steps(events), title)
        print(PICTURE)


if __name__ == "__main__":
    main()
