"""What processes hold, counted again and again and kept in files, and whether it grows.

A sample is of one process at one step. The processes of a worker, one after each restart, are its
lives. Growth is a slope: the median of the slopes between all pairs of samples in the second half
of one life, over all lives of the worker. A few samples out of line do not move it, and what a
process takes once, when it starts, is not in it.
"""

import contextlib
import csv
import dataclasses
import os
import pathlib
import statistics
import time
from collections.abc import Iterable, Sequence

# What may not grow -> by how much it may seem to, per 1,000 steps. A process takes memory for
# thousands of steps after its start: 400 KiB in lives as short as the soak's (docs/long_runs.md).
BOUNDS = {"memory_kib": 512.0, "open_files": 0.05, "threads": 0.05, "children": 0.05}
_SLOPE_STEPS = 1000


@dataclasses.dataclass(frozen=True)
class Sample:
    """One process at one step.

    Attributes:
        who: "worker 1", or "launcher".
        pid: its process id.
        time: seconds since 1970.
        step: steps trained by then.
        memory_kib: its resident memory.
        open_files: its open descriptors.
        threads, children: how many it has.
        weights: digest of the model's weights; empty for the launcher.
    """

    who: str
    pid: int
    time: float
    step: int
    memory_kib: int
    open_files: int
    threads: int
    children: int
    weights: str


_TYPES = {field.name: field.type for field in dataclasses.fields(Sample)}


def sample(who: str, step: int, weights: str = "", pid: int | None = None) -> Sample:
    """A process as it is; this one by default.

    Raises:
        OSError: It has ended.
    """
    pid = pid or os.getpid()
    process = pathlib.Path("/proc", str(pid))
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Sample(
        who=who,
        pid=pid,
        time=round(time.time(), 1),
        step=step,
        memory_kib=int(status["VmRSS"].split()[0]),
        open_files=len(os.listdir(process / "fd")) - (pid == os.getpid()),  # not the listing's own
        threads=int(status["Threads"]),
        children=sum(map(_children, (process / "task").iterdir())),
        weights=weights,
    )


def _children(thread):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return len((thread / "children").read_text().split())
    return 0


class SampleFile:
    """The samples of one worker or of the launcher, on disk at once.

    Args:
        folder: where the files of all are.
        who: whose this one is.
    """

    def __init__(self, folder: pathlib.Path, who: str):
        self._who = who
        self._path = folder / f"samples-{who.replace(' ', '-')}.csv"

    def write(self, step: int, weights: str = "", pid: int | None = None) -> None:
        """Adds a sample; see `sample`."""
        row = dataclasses.astuple(sample(self._who, step, weights, pid))
        with self._path.open("a", newline="") as file:  # not kept open, as open files are counted
            csv.writer(file).writerow(row)

    def read(self) -> list[Sample]:
        """All samples so far."""
        if not self._path.exists():
            return []
        with self._path.open(newline="") as file:
            return [
                Sample(*(kind(cell) for kind, cell in zip(_TYPES.values(), row, strict=True)))
                for row in csv.reader(file)
                if len(row) == len(_TYPES)  # a killed worker may leave a part of its last one
            ]


def lives(samples: Iterable[Sample]) -> list[list[Sample]]:
    """The samples of each process, in their order."""
    by_process: dict[int, list[Sample]] = {}
    for one in samples:
        by_process.setdefault(one.pid, []).append(one)
    return list(by_process.values())


def slope(samples: Sequence[Sample], what: str) -> float:
    """By how much it grows per 1,000 steps, in the second halves of all lives.

    Args:
        samples: those of one worker.
        what: a name of `BOUNDS`.

    Returns:
        The median of the slopes; 0 where no life has two samples there.
    """
    slopes = []
    for life in lives(samples):
        middle = (life[0].step + life[-1].step) / 2
        half = [(one.step, getattr(one, what)) for one in life if one.step >= middle]
        slopes += [
            (later - earlier) / (after - before) * _SLOPE_STEPS
            for i, (before, earlier) in enumerate(half)
            for after, later in half[i + 1 :]
            if after > before
        ]
    return statistics.median(slopes) if slopes else 0.0


def growing(samples: Sequence[Sample]) -> list[str]:
    """What grows in the processes of one worker, in words."""
    found = []
    for what, bound in BOUNDS.items():
        grown = slope(samples, what)
        if grown > bound:
            name = what.replace("memory_kib", "KiB of memory").replace("_", " ")
            found.append(
                f"expected {samples[0].who} to take at most {bound:g} {name} more per "
                f"{_SLOPE_STEPS:,} steps; received {grown:.3g}. Look for what it keeps."
            )
    return found


def unequal(samples: Iterable[Sample]) -> list[str]:
    """The first step at which weights differ, between workers or of one that trained it twice."""
    first: dict[int, Sample] = {}
    for one in sorted(samples, key=lambda one: one.step):
        other = first.setdefault(one.step, one)
        if one.weights != other.weights:
            return [
                f"expected the same weights wherever step {one.step:,} was trained; received "
                f"{other.weights} on {other.who} (process {other.pid}) and {one.weights} on "
                f"{one.who} (process {one.pid}). Look at what differs between them."
            ]
    return []
