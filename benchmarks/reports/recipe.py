"""Accuracy against bytes of every way to train that docs/recipe.md speaks of.

    python benchmarks/reports/recipe.py         -> docs/pictures/recipe.png, docs/data/recipe.csv,
                                                   and the tables
    python benchmarks/reports/recipe.py --done  the tables of what is done: of runs that are here,
                                                   and of docs/data/recipe.csv; makes no run
    python benchmarks/reports/recipe.py --draw  the picture again, of docs/data/recipe.csv

Made from nothing it takes hours (docs/recipe.md): `--only image-4` makes one experiment, `--only
cause` all of that kind, and their rows of the table; `--arm 400x` the arms with that in their
names.
"""

import argparse
import csv
import dataclasses
import math
import pathlib
import re
import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple

from experiments import CONVERGENCE, EXPERIMENTS, METHODS, Experiment
from paired import deficit, estimate, text
from report_runs import ROOT, legend_beside, save

from tf_scalecom.base.pictures import pyplot
from tf_scalecom.simulate.run_files import EVALUATIONS, RECORDS, read_result, read_table

TABLE = ROOT / "docs" / "data" / "recipe.csv"
_OF_OUTCOME = ("percent", "bytes_per_step", "mean_bytes_per_step", "caught")
COLUMNS = ("experiment", "arm", "seed", "figure", *_OF_OUTCOME)

# Of the methods, in their order.
_MARKS = (
    ("black", "s"),
    ("tab:blue", "o"),
    ("tab:green", "^"),
    ("tab:orange", "v"),
    ("tab:red", "D"),
)
_LABEL = re.compile(r"\b(\d+x|auto|rank \d)\b")


class Outcome(NamedTuple):
    """Of one run.

    Attributes:
        figure: in percent; NaN where the run diverged.
        bytes_per_step: of its last step, and so of every step after the warm-up.
        mean_bytes_per_step: over all steps, those of the warm-up among them.
        caught: how much of the true sum the choice catches (docs/simulate.md), mean over the second
            half of the run; NaN where there is no choice.
    """

    figure: float
    bytes_per_step: float
    mean_bytes_per_step: float
    caught: float


# Arm -> seed -> outcome.
Outcomes = dict[str, dict[int, Outcome]]


def outcome(folder: pathlib.Path, figure: str) -> Outcome:
    """Reads a finished run."""
    records = read_table(folder / RECORDS)
    last = records[-1]
    reached = math.nan
    if not read_result(folder)["diverged"]:
        reached = 100 * float(read_table(folder / EVALUATIONS)[-1][figure])
    mean = float(last["bytes_total"]) / float(last["step"])
    caught = [float(row["caught"]) for row in records[len(records) // 2 :] if row.get("caught")]
    return Outcome(
        reached, float(last["bytes_sent"]), mean, statistics.fmean(caught) if caught else math.nan
    )


def outcomes(experiment: Experiment, only_done: bool, arm: str = "") -> Outcomes:
    """What is known of an experiment, in its order: by its runs, or else by the table.

    Args:
        experiment: which.
        only_done: makes none of the runs that are not here.
        arm: makes only those of arms with this in their names.
    """
    chosen = dataclasses.replace(
        experiment, arms=tuple(a for a in experiment.arms if arm in a.name)
    )
    known = {
        (row["arm"], int(row["seed"])): Outcome(*(float(row[c] or "nan") for c in _OF_OUTCOME))
        for row in read()
        if row["experiment"] == experiment.name
    }
    for key, folder in chosen.folders(only_done).items():
        known[key] = outcome(folder, experiment.figure)
    found: Outcomes = {}
    for name, seed in experiment.configs():
        if (name, seed) in known:
            found.setdefault(name, {})[seed] = known[name, seed]
    return found


def print_table(experiment: Experiment, found: Outcomes) -> None:
    """Every arm with its bytes, its figure and what it loses to the dense arm of equal seeds."""
    print(f"\n{experiment.title}\n")
    print(
        "| arm | KB/step | dense / sent | with warm-up | seeds "
        f"| {experiment.figure.replace('_', ' ')}, % | deficit, points | upper 95 % | caught |"
    )
    print("|---" * 9 + "|")
    dense = found.get(experiment.arms[0].name)
    for arm, runs in found.items():
        sent = next(iter(runs.values()))
        figures = {seed: run.figure for seed, run in runs.items()}
        cells = [arm, f"{sent.bytes_per_step / 1e3:,.1f}", "", "", f"{len(runs)}", "", "", "", ""]
        if dense and sent.bytes_per_step:  # one learner sends nothing
            plain = next(iter(dense.values())).bytes_per_step
            cells[2] = f"{plain / sent.bytes_per_step:.1f}"
            cells[3] = f"{plain / sent.mean_bytes_per_step:.1f}"
        if any(math.isnan(f) for f in figures.values()):
            cells[5] = "diverged"
        else:
            mean = estimate(list(figures.values()))
            cells[5] = text(mean.mean, mean.standard_error)
            if dense and runs is not dense and dense.keys() & figures.keys():
                lost = deficit({seed: run.figure for seed, run in dense.items()}, figures)
                cells[6] = text(lost.mean, lost.standard_error)
                cells[7] = "" if math.isnan(lost.upper) else f"{lost.upper:.2f}"
        if not math.isnan(caught := statistics.fmean(run.caught for run in runs.values())):
            cells[8] = f"{caught:.2f}"
        print(f"| {' | '.join(cells)} |")


def write(tables: dict[Experiment, Outcomes]) -> None:
    """One row per run, in the experiments' order; those of other experiments stay as they are."""
    rows = [row for row in read() if row["experiment"] not in {e.name for e in tables}]
    for experiment, found in tables.items():
        for arm, runs in found.items():
            for seed, run in runs.items():
                values = (
                    experiment.name,
                    arm,
                    seed,
                    experiment.figure,
                    f"{run.figure:.3f}",
                    f"{run.bytes_per_step:.0f}",
                    f"{run.mean_bytes_per_step:.0f}",
                    "" if math.isnan(run.caught) else f"{run.caught:.3f}",
                )
                rows.append(dict(zip(COLUMNS, values, strict=True)))
    places = {experiment.name: place for place, experiment in enumerate(EXPERIMENTS)}
    rows.sort(key=lambda row: places.get(row["experiment"], len(places)))  # last, what is no more
    TABLE.parent.mkdir(exist_ok=True)
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"\n{TABLE.relative_to(ROOT)}")


def read() -> list[dict[str, str]]:
    """The rows of the table, by column."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def points(rows: list[dict[str, str]], arms: Sequence[str]) -> dict[float, tuple[str, list[float]]]:
    """KB a step -> (what tells the arms there apart, percent of each seed), of one experiment."""
    found: dict[float, tuple[str, list[float]]] = {}
    for arm in arms:
        runs = [row for row in rows if row["arm"] == arm]
        if not runs:
            continue
        sent, (label,) = float(runs[0]["mean_bytes_per_step"]) / 1e3, _LABEL.findall(arm) or [""]
        figures = [float(row["percent"]) for row in runs]
        if sent in found:  # "auto", where it comes to a ratio that has a point
            label, figures = f"{found[sent][0]}, {label}", found[sent][1]
        found[sent] = (label, figures)
    return found


def draw() -> None:
    """One panel an experiment: figure against bytes, a mark for a mean and a bar for its seeds."""
    rows = read()
    figure, axes = pyplot().subplots(2, 2, figsize=(13, 9), layout="constrained")
    handles = {}
    for axis, experiment in zip(axes.flat, CONVERGENCE, strict=True):
        of_experiment = [row for row in rows if row["experiment"] == experiment.name]
        for (method, arms), (color, mark) in zip(METHODS.items(), _MARKS, strict=True):
            found = points(of_experiment, arms)
            if not found:
                continue
            sent = sorted(found)
            means = [statistics.fmean(found[x][1]) for x in sent]
            ranges = [
                [m - min(found[x][1]) for x, m in zip(sent, means, strict=True)],
                [max(found[x][1]) - m for x, m in zip(sent, means, strict=True)],
            ]
            handles[method] = axis.errorbar(
                sent, means, ranges, color=color, marker=mark, linestyle=":", capsize=3, mfc="none"
            )
            for x, mean in zip(sent, means, strict=True):
                axis.annotate(
                    found[x][0], (x, mean), (7, 3), textcoords="offset points", color=color
                )
        axis.set_xscale("log")
        axis.set_xlabel("KB a learner sends in a step, mean over all steps")
        axis.set_ylabel(f"{experiment.figure.replace('_', ' ')}, %")
        axis.set_title(experiment.title, fontsize=9)
        axis.margins(x=0.12)
        axis.grid(alpha=0.3)
    legend_beside(figure, handles)
    save(figure, "recipe.png")


def main():
    """Runs, prints the tables, draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--done",
        action="store_true",
        help="the tables of what is done: make and write nothing",
    )
    parser.add_argument("--draw", action="store_true", help="the picture, of the table in docs")
    parser.add_argument("--only", help="an experiment, or all whose names begin so before a dash")
    parser.add_argument("--arm", default="", help="only arms with this in their names")
    args = parser.parse_args()
    if args.draw:
        draw()
        return
    chosen = [e for e in EXPERIMENTS if f"{e.name}-".startswith(f"{args.only or e.name}-")]
    if not chosen:
        names = ", ".join(e.name for e in EXPERIMENTS)
        sys.exit(f"Expected an experiment, of {names}; received {args.only!r}. Correct --only.")
    if not any(args.arm in arm.name for e in chosen for arm in e.arms):
        sys.exit(f"Expected a part of an arm's name; received {args.arm!r}. Correct --arm.")
    tables = {e: found for e in chosen if (found := outcomes(e, args.done, args.arm))}
    if not tables:
        sys.exit("Expected runs that are done; found none. Leave out --done.")
    for experiment, found in tables.items():
        print_table(experiment, found)
    if not args.done:
        write(tables)
        draw()


if __name__ == "__main__":
    main()
