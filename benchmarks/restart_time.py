"""Where the time goes between a worker's death and the next step of training.

    .venv/bin/python benchmarks/restart_time.py --workers 2 --model 5M
    .venv/bin/python benchmarks/restart_time.py --beside build/before    # another version's sources

Under `run --max-restarts 1` the last worker kills itself after a step. Each row of the table begins
where the row above ends: when the last worker got there. With `--beside` two versions take turns,
round after round, so that the machine's other load hits them alike. Each runs from a copy, where
Python keeps what it has compiled, as it does of a package that is installed.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

_STARTED = time.monotonic()  # the same clock in all processes of a machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
BACKUP_EVERY, STEPS = 5, 500
# What a worker notes, and what a row calls the time until then.
MARKS = {
    "python": "processes start",
    "tensorflow": "TensorFlow and Keras are imported",
    "tf_scalecom": "tf_scalecom is imported",
    "met": "workers meet",
    "built": "model is built",
    "restored": "backup is restored",
    "traced": "step is traced",
    "stepped": "first step",
}
LAUNCHER_MARKS = {"noticed": "loss is noticed", "ended": "the others end"}
# What only another TensorFlow or Keras would change.
NOT_OURS = ("tensorflow",)


def train(folder):
    """One worker: until it is killed, and after the restart for one step."""
    marks = {"python": _STARTED}

    def mark(name):
        marks.setdefault(name, time.monotonic())

    import keras
    import numpy as np
    import tensorflow as tf

    mark("tensorflow")
    import tf_scalecom as sc

    sc.callbacks.BackupAndRestore  # noqa: B018  the import is lazy
    mark("tf_scalecom")
    from step_time import BATCH, WIDTHS, dense_layers

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = sc.MultiWorkerMirroredStrategy()
    mark("met")
    rank, workers = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
    died = folder / "died"
    is_restart = died.exists()

    class Model(keras.Sequential):
        def train_step(self, *args, **kwargs):
            logs = super().train_step(*args, **kwargs)
            mark("traced")
            return logs

    class Marks(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            mark("restored")

        def on_train_batch_end(self, batch, logs=None):
            mark("stepped")
            if is_restart:
                self.model.stop_training = True
            elif rank == workers - 1 and any(folder.glob("backup/*/backup.json")):
                died.write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)

    widths = WIDTHS[os.environ["MODEL"]]
    with strategy.scope():
        model = Model(dense_layers(widths))
        model.compile(
            sc.ScaleComOptimizer(keras.optimizers.SGD(0.01), 100),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    rng = np.random.default_rng(0)
    rows = BATCH * workers
    x, y = rng.normal(size=(rows, widths[0])).astype("f"), rng.integers(0, widths[-1], rows)
    mark("built")
    backup = sc.callbacks.BackupAndRestore(folder / "backup", save_freq=BACKUP_EVERY)
    model.fit(
        tf.data.Dataset.from_tensors((x, y)).repeat(STEPS), verbose=0, callbacks=[backup, Marks()]
    )
    if is_restart:
        (folder / f"marks-{rank}.json").write_text(json.dumps(marks))


def restart(sources: pathlib.Path, model: str, workers: int) -> dict[str, float]:
    """Trains, with a restart; returns the seconds of each row."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        copy = folder / "sources"
        shutil.copytree(sources / "tf_scalecom", copy / "tf_scalecom")
        launcher = subprocess.Popen(
            [
                sys.executable, "-m", "tf_scalecom", "run", "-n", str(workers),
                "--max-restarts", "1", "--log-dir", name,
                __file__, "--folder", name,
            ],
            cwd=copy,
            env={
                **os.environ,
                "PYTHONPATH": str(copy),
                "PYTHONDONTWRITEBYTECODE": "",
                "MODEL": model,
            },
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        ends, output = {}, []
        try:
            for line in launcher.stdout:
                output.append(line)
                if "ended by signal 9" in line:
                    ends.setdefault("noticed", time.monotonic())
                elif line.startswith("[run] restarting"):
                    ends["ended"] = time.monotonic()
        finally:
            with contextlib.suppress(ProcessLookupError):
                launcher.terminate()
            launcher.wait()
        if launcher.returncode or "ended" not in ends:
            raise RuntimeError(
                f"Expected {workers} workers to train again after one was killed; received exit "
                f"code {launcher.returncode}:\n{''.join(output[-30:])}Mend that first."
            )
        died = float((folder / "died").read_text())
        marks = [json.loads((folder / f"marks-{rank}.json").read_text()) for rank in range(workers)]
    for mark in MARKS:
        ends[mark] = max(of_one[mark] for of_one in marks)
    begins = [died, *ends.values()]
    return {name: end - begin for (name, end), begin in zip(ends.items(), begins, strict=False)}


def main():
    """Measures restarts and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("5M", "25M"), default="5M")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=pathlib.Path, help="sources of another version")
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        train(arguments.folder)
        return
    versions = {"these": ROOT}
    if arguments.beside:
        versions = {"those": arguments.beside.resolve(), **versions}
    times = {version: [] for version in versions}
    for _ in range(arguments.rounds):
        for version, sources in versions.items():
            times[version].append(restart(sources, arguments.model, arguments.workers))
            print(
                f"{version}: {sum(times[version][-1].values()):.1f} s", file=sys.stderr, flush=True
            )
    print(
        f"{arguments.model}, {arguments.workers} workers, {os.cpu_count()} cores, "
        f"{arguments.rounds} rounds, load {os.getloadavg()[0]:.1f}; medians, in seconds"
    )
    names = {**LAUNCHER_MARKS, **MARKS}
    print(f"{'':36}" + "".join(f"{version:>8}" for version in versions))

    def row(name, seconds_of):
        medians = [statistics.median(map(seconds_of, of_one)) for of_one in times.values()]
        print(f"{name:36}" + "".join(f"{seconds:8.2f}" for seconds in medians), end="")
        if arguments.beside:
            ratios = [
                seconds_of(after) / seconds_of(before)
                for before, after in zip(*times.values(), strict=True)
            ]
            print(f"   ratio {statistics.median(ratios):.2f}", end="")
        print()

    for mark, name in names.items():
        row(name, lambda seconds, mark=mark: seconds[mark])
    row("all", lambda seconds: sum(seconds.values()))
    row(
        "all but the import of TensorFlow",
        lambda s: sum(v for m, v in s.items() if m not in NOT_OURS),
    )


if __name__ == "__main__":
    main()
