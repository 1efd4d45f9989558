"""The files of a run: its options, its records, the state to go on from, its result.

Whatever stands in them, reading has one error: what is not as it was written is damaged.
"""

import contextlib
import csv
import dataclasses
import io
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tf_scalecom.base.terminal import one_line, shortened
from tf_scalecom.base.whole_files import write_whole
from tf_scalecom.simulate.config import SimulationConfig
from tf_scalecom.simulate.simulation import MEASURES, Simulation
from tf_scalecom.simulate.task import Task, expect, identity

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
        if not path.is_file():
            raise ValueError("no ordinary file")
        yield
    except Exception as error:  # of text, JSON, a table's cells, an archive or the arrays in it
        words = shortened(one_line(f"{type(error).__name__}: {error}"))
        raise UnusableFolder(
            f"Expected {path} to be as `simulate` wrote it; received a damaged file ({words}). Put "
            "it back, or remove its folder to make the run again."
        ) from error


def _expect(is_so: bool, what: str) -> None:
    """Of a file that is read."""
    if not is_so:
        raise ValueError(f"expected {what}")


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
    if not os.path.lexists(path):
        _write(path, json.dumps(wanted, indent=1))
        return
    with _reading(path):
        found = json.loads(path.read_text("utf-8"))
        _expect(isinstance(found, dict), "names and values")
    differing = {k: (found.get(k), v) for k, v in wanted.items() if found.get(k) != v}
    if differing:
        raise UnusableFolder(
            f"Expected {folder} to hold a run of the same task with the same options; received "
            + ", ".join(
                f"{k}: {shortened(repr(old))} there, {new!r} now"
                for k, (old, new) in differing.items()
            )
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
    if not os.path.lexists(path):
        return
    with _reading(path), path.open("rb") as file, np.load(file) as arrays:
        for name, variable in simulation.variables().items():
            value, expected = arrays[name], variable.numpy()
            _expect(
                value.shape == expected.shape and value.dtype == expected.dtype,
                f"{name} of shape {expected.shape} and dtype {expected.dtype}, received one of "
                f"{value.shape} and {value.dtype}",
            )
            variable.assign(value)
        weights = simulation.model.trainable_variables
        _expect(all(np.isfinite(w.numpy()).all() for w in weights), "finite weights")
        step, bytes_total = arrays["step"], arrays["bytes_total"]
        _expect(
            step.dtype == np.int64 and 0 <= step <= simulation.config.steps,
            f"a step from 0 to {simulation.config.steps}, received {step}",
        )
        _expect(
            bytes_total.dtype == np.float64 and 0 <= bytes_total < math.inf,
            f"a number as bytes_total, received {bytes_total}",
        )
        simulation.step, simulation.bytes_total = int(step), float(bytes_total)


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
        """Writes a row; columns it does not have stay empty.

        Raises:
            TaskError: it has others.
        """
        self._columns = self._columns or list(row)
        what = f"the same figures at each evaluation, {', '.join(self._columns)}"
        expect(row.keys() <= set(self._columns), what, ", ".join(map(str, row)))
        text = self._text([row], with_header=not self._path.exists())
        with self._path.open("a", newline="", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a state that is saved later has what goes before it

    def _text(self, rows, with_header):
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns or list(rows[0]))
        if with_header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def open_tables(
    folder: pathlib.Path, config: SimulationConfig, last_step: int
) -> tuple[Table, Table]:
    """The records and the evaluations of a run that goes on after a step.

    What is beyond it is dropped, and comes anew.
    """
    records = _rows(folder / RECORDS, config.record_every, config, last_step)
    evaluations = _rows(folder / EVALUATIONS, config.evaluate_every, config, last_step)
    return (
        Table(folder / RECORDS, ("step", *MEASURES), records),
        Table(folder / EVALUATIONS, list(evaluations[0]) if evaluations else None, evaluations),
    )


def _rows(path, every, config, last_step):
    """The rows of a table up to a step: one every so many steps, and one at the run's end."""
    rows = read_table(path) if os.path.lexists(path) else []
    wanted = list(range(every, last_step + 1, every))
    if last_step == config.steps and last_step % every:
        wanted.append(last_step)
    if not rows and not wanted:
        return []
    with _reading(path):
        kept = [row for row in rows if int(row["step"]) <= last_step]
        found = [int(row["step"]) for row in kept]
        _expect(found == wanted, f"rows of steps {wanted}, received {found}")
        names = set(rows[0] if rows else EVALUATED_AT)
        is_known = path.name != RECORDS or names <= {"step", *MEASURES}
        _expect(is_known and names >= set(EVALUATED_AT), "its columns")
        return kept


def read_table(path: pathlib.Path) -> list[dict[str, str]]:
    """All rows of a `Table`; not a last one of which only a part came to the disk."""
    with _reading(path), path.open(newline="", encoding="utf-8") as file:
        lines = file.readlines()
        if lines and not lines[-1].endswith("\n"):
            del lines[-1]
        table = csv.DictReader(lines, strict=True)
        rows = list(table)
        names = table.fieldnames or []
        _expect(len(set(names)) == len(names), "a name for each column")
        for row in rows:
            if None in row or None in row.values():  # more or fewer cells than columns
                raise ValueError(f"not one value for each column in step {row['step']}")
            np.int64(row["step"])
            for cell in filter(None, row.values()):
                float(cell)
        return rows


def last_evaluation(
    folder: pathlib.Path, config: SimulationConfig, last_step: int
) -> dict[str, float]:
    """The figures of the last row of evaluations.csv up to a step, {} without one."""
    path = folder / EVALUATIONS
    rows = _rows(path, config.evaluate_every, config, last_step)
    if not rows:
        return {}
    with _reading(path):
        return {name: float(cell) for name, cell in rows[-1].items() if name not in EVALUATED_AT}


def write_result(folder: pathlib.Path, result: Mapping[str, object]) -> None:
    """Marks the run as done; its state is of no more use."""
    _write(folder / RESULT, json.dumps(result, indent=1))
    (folder / STATE).unlink(missing_ok=True)


def read_result(folder: pathlib.Path, steps: int | None = None) -> dict | None:
    """What `write_result` wrote, None before; `steps` are all of the run, where known."""
    path = folder / RESULT
    if not os.path.lexists(path):
        return None
    with _reading(path):
        result = json.loads(path.read_text("utf-8"))
        _expect(isinstance(result, dict), "names and values")
        _expect(all(isinstance(value, int | float) for value in result.values()), "numbers")
        step, diverged = result["step"], result["diverged"]
        _expect(isinstance(diverged, bool), "true or false as diverged")
        _expect(0 <= float(result["bytes_total"]) < math.inf, "a number as bytes_total")
        _expect(type(step) is int and step >= 0, "a number of steps")
        if steps is not None:
            _expect(step < steps if diverged else step == steps, f"the end of {steps} steps")
        return result


def _write(path: pathlib.Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))
