"""The files of a run: its options, its records, the state to go on from, its result."""

import contextlib
import csv
import dataclasses
import io
import json
import pathlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tf_scalecom.base.whole_files import write_whole
from tf_scalecom.simulate.config import SimulationConfig
from tf_scalecom.simulate.simulation import MEASURES, Simulation
from tf_scalecom.simulate.task import Task, identity

CONFIG, STATE, RESULT = "config.json", "state.npz", "result.json"
RECORDS, EVALUATIONS = "records.csv", "evaluations.csv"
# The columns of evaluations.csv beside the task's figures.
EVALUATED_AT = ("step", "bytes_total")


class UnusableFolder(ValueError):
    """A run's folder that is another run's, that is damaged, or that cannot be written."""


@contextlib.contextmanager
def writing(folder: pathlib.Path) -> Iterator[None]:
    """What is written inside has one error.

    Raises:
        UnusableFolder: something cannot be written, e.g. for want of space.
    """
    try:
        yield
    except OSError as error:
        raise UnusableFolder(
            f"Expected a folder that can be written; received {str(folder)!r}: "
            f"{error.strerror or error}. Make room, or choose another folder (--out); what is "
            "there stays, and the same command goes on from it."
        ) from error


@contextlib.contextmanager
def _reading(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    # Of text, JSON, a table's cells, an archive and the arrays in it.
    except (ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
        words = str(error).partition("\n")[0]
        raise UnusableFolder(
            f"Expected {path} to be as `simulate` wrote it; received a damaged file "
            f"({type(error).__name__}: {words}). Put it back, or remove its folder to make the run "
            "again."
        ) from error


def open_config(folder: pathlib.Path, task: Task, config: SimulationConfig) -> None:
    """Writes task and options down, or checks that they are those the folder was begun with.

    Raises:
        UnusableFolder: they are others, or nothing can be written there.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _open_config(folder, identity(task) | dataclasses.asdict(config))


def _open_config(folder, wanted):
    path = folder / CONFIG
    if not path.exists():
        _write(path, json.dumps(wanted, indent=1))
        return
    with _reading(path):
        found = dict(json.loads(path.read_text()))
    differing = {k: (found.get(k), v) for k, v in wanted.items() if found.get(k) != v}
    if differing:
        raise UnusableFolder(
            f"Expected {folder} to hold a run of the same task with the same options; received "
            + ", ".join(f"{k}: {old!r} there, {new!r} now" for k, (old, new) in differing.items())
            + ". Choose another folder (--out), or remove this one."
        )


def save_state(folder: pathlib.Path, simulation: Simulation) -> None:
    """Stores everything a run needs to go on: complete, or the state before."""
    arrays = {name: variable.numpy() for name, variable in simulation.variables().items()}
    arrays["step"] = np.int64(simulation.step)
    arrays["bytes_total"] = np.float64(simulation.bytes_total)
    write_whole(folder / STATE, lambda file: np.savez(file, **arrays))


def restore_state(folder: pathlib.Path, simulation: Simulation) -> None:
    """Puts a simulation back where its folder's state is; nothing to do without one."""
    path = folder / STATE
    if not path.exists():
        return
    with _reading(path), path.open("rb") as file, np.load(file) as arrays:
        for name, variable in simulation.variables().items():
            variable.assign(arrays[name])
        simulation.step = int(arrays["step"])
        simulation.bytes_total = float(arrays["bytes_total"])


class Table:
    """A CSV file that grows by a row at a time, of rows {column: value}; the first is the step.

    Args:
        path: the file, written anew.
        columns: names; None takes them from the first row.
        rows: those it begins with.
    """

    def __init__(
        self,
        path: pathlib.Path,
        columns: Sequence[str] | None,
        rows: Sequence[Mapping[str, object]] = (),
    ):
        self._path = path
        self._columns = columns
        if rows:
            _write(path, self._text(rows, with_header=True))
        else:
            path.unlink(missing_ok=True)

    def append(self, row: Mapping[str, object]) -> None:
        """Writes a row; columns it does not have stay empty."""
        text = self._text([row], with_header=not self._path.exists())
        with self._path.open("a", newline="") as file:
            file.write(text)

    def _text(self, rows, with_header):
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns or list(rows[0]))
        if with_header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def open_tables(folder: pathlib.Path, last_step: int) -> tuple[Table, Table]:
    """The records and the evaluations of a run that goes on after a step.

    What is beyond it is dropped, and comes anew.
    """
    records, evaluations = (_rows(folder / name, last_step) for name in (RECORDS, EVALUATIONS))
    return (
        Table(folder / RECORDS, ("step", *MEASURES), records),
        Table(folder / EVALUATIONS, None, evaluations),
    )


def _rows(path, last_step):
    rows = read_table(path) if path.exists() else []
    with _reading(path):
        return [row for row in rows if int(row["step"]) <= last_step]


def read_table(path: pathlib.Path) -> list[dict[str, str]]:
    """All rows of a `Table`; not a last one of which only a part came to the disk."""
    with _reading(path), path.open(newline="") as file:
        lines = file.readlines()
        if lines and not lines[-1].endswith("\n"):
            del lines[-1]
        rows = list(csv.DictReader(lines, strict=True))
        for row in rows:
            if None in row or None in row.values():  # more or fewer cells than columns
                raise ValueError(f"not one value for each column in step {row['step']}")
        return rows


def last_evaluation(folder: pathlib.Path, last_step: int) -> dict[str, float]:
    """The figures of the last row of evaluations.csv up to a step, {} without one."""
    path = folder / EVALUATIONS
    rows = _rows(path, last_step)
    with _reading(path):
        return {
            name: float(value)
            for name, value in (rows[-1] if rows else {}).items()
            if name not in EVALUATED_AT
        }


def write_result(folder: pathlib.Path, result: Mapping[str, object]) -> None:
    """Marks the run as done; its state is of no more use."""
    _write(folder / RESULT, json.dumps(result, indent=1))
    (folder / STATE).unlink(missing_ok=True)


def read_result(folder: pathlib.Path) -> dict | None:
    """What `write_result` wrote, None before."""
    path = folder / RESULT
    if not path.exists():
        return None
    with _reading(path):
        return dict(json.loads(path.read_text()))


def _write(path: pathlib.Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))
