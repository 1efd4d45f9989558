"""Trains for 50,000 steps on 3 workers, of which one is killed every few thousand steps.

    make soak                                                       # half an hour on 2 cores
    .venv/bin/python benchmarks/soak --steps 2000 --kill_every 500  # a look

Fails where memory, open files, threads or children of a process grow (`samples.py` says how that is
decided), where workers differ in their weights, or where training does not end. A killed worker
comes back as users have it: by `run --max-restarts` and `BackupAndRestore`. Started again with its
folder, an interrupted soak goes on from the last backup, and one that is through is reported again.
"""

import argparse
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time

from samples import BOUNDS, Sample, SampleFile, growing, lives, slope, unequal

from tf_scalecom.base.text_table import text_table

ROOT = pathlib.Path(__file__).resolve().parents[2]
_POLL_SECONDS = 0.2
_LAUNCHER_SAMPLE_SECONDS = 10.0
_END_SECONDS = 60.0


def main() -> int:
    """Runs the soak, prints its table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kill_every", type=int, default=5_000, help="steps, on average")
    parser.add_argument("--backup_every", type=int, default=200, help="steps")
    parser.add_argument("--sample_every", type=int, default=100, help="steps")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed, and when")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "runs" / "soak")
    parser.add_argument(
        "--docs", action="store_true", help="put the samples and the picture into docs/, too"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    soak = Soak(arguments)
    code = 0 if soak.reached() >= arguments.steps else soak.run()
    every = {who: file.read() for who, file in soak.files.items()}
    of_workers = [one for who, samples in every.items() if who != "launcher" for one in samples]
    print(table(every))
    kills = len(lives(every[soak.workers[0]])) - 1
    minutes = (max(one.time for one in of_workers) - min(one.time for one in of_workers)) / 60
    print(f"{kills} restarts, {minutes:.0f} minutes, {os.cpu_count()} cores")
    if arguments.docs:
        from picture import publish

        publish(every, ROOT / "docs")
    faults = [fault for samples in every.values() if samples for fault in growing(samples)]
    faults += unequal(of_workers)
    if code or soak.reached() < arguments.steps:
        faults.append(
            f"expected all workers to train {arguments.steps:,} steps; received "
            f"{soak.reached():,}, and exit code {code}. Look at the logs in "
            f"{arguments.folder / 'logs'}."
        )
    for fault in faults:
        print(f"Soak: {fault}", file=sys.stderr)
    return 1 if faults else 0


class Soak:
    """A run of the launcher, whose workers are killed now and then.

    Args:
        arguments: those of the command.

    Attributes:
        workers: their names.
        files: name -> samples, of the workers and the launcher.
    """

    def __init__(self, arguments: argparse.Namespace):
        self._arguments = arguments
        self._random = random.Random(arguments.seed)
        self.workers = [f"worker {rank}" for rank in range(arguments.workers)]
        self.files = {who: SampleFile(arguments.folder, who) for who in (*self.workers, "launcher")}

    def reached(self) -> int:
        """The last step of which all workers have left a sample."""
        samples = [self.files[who].read() for who in self.workers]
        return min(max((one.step for one in of_one), default=0) for of_one in samples)

    def run(self) -> int | None:
        """Trains to the end; returns the launcher's exit code."""
        arguments = self._arguments
        training = [
            str(pathlib.Path(__file__).with_name("training.py")),
            "--folder", str(arguments.folder), "--steps", str(arguments.steps),
            "--sample_every", str(arguments.sample_every),
            "--backup_every", str(arguments.backup_every),
        ]  # fmt: skip
        most = 2 * arguments.steps // arguments.kill_every + 1  # a kill is 1/2 of it away at least
        launcher = subprocess.Popen(
            [
                sys.executable, "-m", "tf_scalecom", "run", "-n", str(arguments.workers),
                "--max-restarts", str(most), "--log-dir", str(arguments.folder / "logs"),
                "--quiet", *training,
            ],
            cwd=ROOT,
        )  # fmt: skip
        try:
            self._watch(launcher)
        except BaseException:
            launcher.terminate()
            launcher.wait(_END_SECONDS)
            raise
        return launcher.returncode

    def _watch(self, launcher):
        kill_at = self._next_kill(self.reached())
        sampled_at = 0.0
        while launcher.poll() is None:
            time.sleep(_POLL_SECONDS)
            last = self._last()
            if last is None:
                continue
            if time.monotonic() - sampled_at >= _LAUNCHER_SAMPLE_SECONDS:
                sampled_at = time.monotonic()
                try:
                    self.files["launcher"].write(last.step, pid=launcher.pid)
                except (OSError, KeyError):  # it has just ended
                    continue
            if last.step >= kill_at:
                self._kill(launcher)
                kill_at = self._next_kill(last.step)

    def _next_kill(self, step):
        every = self._arguments.kill_every
        return step + self._random.randint(every // 2, every * 3 // 2)

    def _last(self) -> Sample | None:
        samples = self.files[self.workers[0]].read()
        return samples[-1] if samples else None

    def _kill(self, launcher):
        victim = self._random.choice(self.workers)
        samples = self.files[victim].read()
        # Its number may be another process's by now, which is no child of the launcher's.
        if samples and samples[-1].pid in _children(launcher.pid):
            os.kill(samples[-1].pid, signal.SIGKILL)
            print(f"killed {victim} after step {samples[-1].step:,}", flush=True)


def _children(pid):
    tasks = pathlib.Path("/proc", str(pid), "task").glob("*/children")
    return {int(child) for path in tasks for child in path.read_text().split()}


def table(every: dict[str, list[Sample]]) -> str:
    """What each held in its longest life, medians of its third and last quarter, and all growth."""
    rows = []
    for who, samples in every.items():
        if not samples:
            continue
        longest = max(lives(samples), key=len)
        quarter = (len(longest) + 3) // 4
        parts = longest[-2 * quarter : -quarter] or longest, longest[-quarter:]

        def held(what, parts=parts):
            return [statistics.median_low(getattr(one, what) for one in part) for part in parts]

        memory = " / ".join(f"{kib / 1024:.1f}" for kib in held("memory_kib"))
        counts = [" / ".join(map(str, held(what))) for what in BOUNDS if what != "memory_kib"]
        slopes = [f"{slope(samples, what):+.3g}" for what in BOUNDS]
        rows.append([who, str(len(lives(samples))), memory, *counts, *slopes])
    names = ["memory, MiB", *(what.replace("_", " ") for what in BOUNDS if what != "memory_kib")]
    growth = ["KiB", *names[1:]]
    header = ["", "lives", *names, *(f"{name} / 1,000 steps" for name in growth)]
    return text_table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
