"""The files of a run: its options, its records, the state to go on from, its result."""

import csv
import dataclasses
import io
import json
import pathlib
from collections.abc import Mapping, Sequence

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
    """A run's folder that is another run's, or cannot be written."""


def open_config(folder: pathlib.Path, task: Task, config: SimulationConfig) -> None:
    """Writes task and options down, or checks that they are those the folder was begun with.

    Raises:
        UnusableFolder: they are others, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _open_config(folder, identity(task) | dataclasses.asdict(config))
    except OSError as error:
        raise UnusableFolder(
            f"Expected a folder that can be written; received {str(folder)!r}: {error.strerror}. "
            "Choose another folder (--out)."
        ) from error


def _open_config(folder, wanted):
    path = folder / CONFIG
    if not path.exists():
        _write(path, json.dumps(wanted, indent=1))
        return
    found = json.loads(path.read_text())
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
    with np.load(path) as arrays:
        for name, variable in simulation.variables().items():
            variable.assign(arrays[name])
        simulation.step = int(arrays["step"])
        simulation.bytes_total = float(arrays["bytes_total"])


class Table:
    """A CSV file that grows by a row at a time, of rows {column: value}; the first is the step.

    Args:
        path: the file.
        columns: names; None takes them from the first row.
        last_step: rows beyond are dropped: the run that goes on writes them anew.
    """

    def __init__(self, path: pathlib.Path, columns: Sequence[str] | None, last_step: int):
        self._path = path
        self._columns = columns
        rows = read_table(path) if path.exists() else []
        kept = [row for row in rows if int(row["step"]) <= last_step]
        if kept:
            _write(path, self._text(kept, with_header=True))
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
    """The records and the evaluations of a run, up to a step."""
    records = Table(folder / RECORDS, ("step", *MEASURES), last_step)
    return records, Table(folder / EVALUATIONS, None, last_step)


def read_table(path: pathlib.Path) -> list[dict[str, str]]:
    """All rows of a `Table`."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def last_evaluation(folder: pathlib.Path) -> dict[str, float]:
    """The figures of the last row of evaluations.csv, {} without one."""
    path = folder / EVALUATIONS
    rows = read_table(path) if path.exists() else []
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
    return json.loads(path.read_text()) if path.exists() else None


def _write(path: pathlib.Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))
