"""What the reports make of finished runs: means over seeds, deficits, steps to a loss."""

import dataclasses
import math
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks" / "reports"))

import experiments
import length
import paired
import recipe
import report_runs
import speedup
from simulated_task import LinearClasses

from tf_scalecom.forecast.accuracy import TASKS
from tf_scalecom.simulate import SimulationConfig, run_files


def finished(folder, config, rows, diverged=False, bytes_sent=1_000.0, **measured):
    """A folder as a run leaves it."""
    run_files.open_config(folder, LinearClasses(), config)
    records, evaluations = run_files.open_tables(folder, config, last_step=0)
    steps = rows[-1]["step"]
    total = 4 * bytes_sent * steps
    records.append({"step": steps, "bytes_sent": bytes_sent, "bytes_total": total} | measured)
    for row in rows:
        evaluations.append(row)
    run_files.write_result(folder, {"step": steps, "bytes_total": total, "diverged": diverged})


def test_a_deficit_is_of_the_seeds_that_both_have():
    lost = paired.deficit({0: 92.0, 1: 91.0, 2: 93.0, 3: 50.0}, {0: 91.0, 1: 90.5, 2: 91.5})
    assert lost.mean == pytest.approx(1.0)
    assert lost.standard_error == pytest.approx(0.5 / math.sqrt(3))
    assert lost.upper == pytest.approx(1.0 + 2.920 * 0.5 / math.sqrt(3))  # t(0.95, 2 degrees)
    assert math.isnan(paired.deficit({0: 92.0}, {0: 91.0}).upper)
    with pytest.raises(ValueError, match=r"same seeds; received seeds \[0\] and \[1\]"):
        paired.deficit({0: 92.0}, {1: 91.0})


def test_steps_to_a_loss_lie_between_two_evaluations(tmp_path):
    losses = {10: 1.6, 20: 0.8, 30: 0.4}
    rows = [{"step": step, "test_loss": loss} for step, loss in losses.items()]
    finished(tmp_path, SimulationConfig(), rows)
    assert speedup.steps_to(0.8, tmp_path) == pytest.approx(20)
    assert speedup.steps_to(0.8 / math.sqrt(2), tmp_path) == pytest.approx(25)
    assert math.isnan(speedup.steps_to(0.1, tmp_path))


def test_the_table_of_the_recipe_has_what_is_done(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report_runs, "RUNS", tmp_path)
    monkeypatch.setattr(recipe, "TABLE", tmp_path / "recipe.csv")
    monkeypatch.setattr(recipe, "ROOT", tmp_path)
    experiment = dataclasses.replace(
        experiments.IMAGE_64,
        arms=(
            experiments.Arm("dense", {"method": "dense"}, (0, 1, 2)),
            experiments.Arm("compressed", {}, (0, 1, 2)),
            experiments.Arm("too fast", {"learning_rate": 9.0}),
            experiments.Arm("alone", {"learners": 1}),
            experiments.Arm("not done", {"beta": 0.5}),
        ),
    )
    accuracies = {
        ("dense", 0): 0.92,
        ("dense", 1): 0.91,
        ("compressed", 0): 0.915,
        ("compressed", 1): 0.895,
        ("too fast", 0): 0.1,
        ("alone", 0): 0.92,
    }
    measured = {"compressed": {"caught": 0.5}, "alone": {"caught": 1.0, "bytes_sent": 0.0}}
    for key, accuracy in accuracies.items():
        config = experiment.configs()[key]
        row = {"step": 3_000, "accuracy": accuracy}
        folder = tmp_path / experiment.task / config.name
        arm = key[0]
        finished(folder, config, [row], diverged=arm == "too fast", **measured.get(arm, {}))
    # One that was made elsewhere is in the table, and an arm that is no more.
    elsewhere, gone = (recipe.Outcome(p, 1_000.0, 4_000.0, 0.5) for p in (91.0, 90.0))
    recipe.write({experiment: {"compressed": {2: elsewhere}, "gone": {0: gone}}})
    found = recipe.outcomes(experiment, only_done=True)
    assert found["compressed"].pop(2) == elsewhere
    recipe.print_table(experiment, found)
    rows = capsys.readouterr().out.splitlines()[-4:]
    assert rows == [
        "| dense | 1.0 | 1.0 | 0.2 | 2 | 91.50 ± 0.50 |  |  |  |",
        # Lost: 0.5 and 1.5 points; t of one degree of freedom is 6.314.
        "| compressed | 1.0 | 1.0 | 0.2 | 2 | 90.50 ± 1.00 | 1.00 ± 0.50 | 4.16 | 0.50 |",
        "| too fast | 1.0 | 1.0 | 0.2 | 1 | diverged |  |  |  |",
        "| alone | 0.0 |  |  | 1 | 92.00 | 0.00 |  | 1.00 |",
    ]


def test_rows_of_other_experiments_stay_in_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "TABLE", tmp_path / "recipe.csv")
    monkeypatch.setattr(recipe, "ROOT", tmp_path)

    def outcome(percent):
        return {"dense": {0: recipe.Outcome(percent, 1e3, 2e3, math.nan)}}

    recipe.write({experiments.IMAGE_4: outcome(90.0), experiments.SPEECH: outcome(80.0)})
    recipe.write({experiments.SPEECH: outcome(81.0)})
    kept = {row["experiment"]: (row["arm"], row["percent"]) for row in recipe.read()}
    assert kept == {"image-4": ("dense", "90.000"), "speech": ("dense", "81.000")}


def test_the_tables_of_the_docs_are_those_of_the_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report_runs, "RUNS", tmp_path)
    for experiment in experiments.EXPERIMENTS:
        recipe.print_table(experiment, recipe.outcomes(experiment, only_done=True))
    printed = {_cells(line) for line in capsys.readouterr().out.splitlines()}
    page = (report_runs.ROOT / "docs" / "recipe.md").read_text()
    rows = [_cells(line) for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if len(row) in (8, 9)]
    assert len(rows) > 150
    # Some tables leave out the last column, of what is caught.
    printed |= {row[:8] for row in printed}
    assert [row for row in rows if row not in printed] == []


def _cells(line):
    return tuple(cell.strip() for cell in line.strip("|").split("|"))


def test_what_a_length_costs_is_lost_to_the_same_optimizer(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "TABLE", tmp_path / "recipe.csv")
    monkeypatch.setattr(recipe, "ROOT", tmp_path)
    percents = {"dense SGD": 50.0, "dense Adam": 60.0, "SGD, the recipe": 49.0, "Adam(0.9)": 57.0}
    runs = {arm: {0: recipe.Outcome(p, 1e3, 2e3, math.nan)} for arm, p in percents.items()}
    recipe.write({experiments.LENGTHS[0]: runs})
    assert {
        name: {n: lost.mean for n, lost in of_arm.items()}
        for name, of_arm in length.deficits().items()
    } == {
        "SGD, the recipe": {500: 1.0},
        "Adam(0.9)": {500: 3.0},
    }


def test_every_experiment_has_runs_of_its_own_and_a_dense_arm_first():
    for experiment in experiments.EXPERIMENTS:
        configs = experiment.configs()
        assert len(set(configs.values())) == len(configs)
        assert configs[experiment.arms[0].name, 0].method == "dense"


def test_accuracies_that_plan_tells_are_those_of_the_table():
    rows = recipe.read()

    def figures(experiment, arm):
        return {
            row["seed"]: float(row["percent"])
            for row in rows
            if (row["experiment"], row["arm"]) == (experiment, arm)
        }

    for task in TASKS:
        for of in task.lost:
            lost = paired.deficit(figures(of.experiment, of.dense), figures(of.experiment, of.arm))
            assert of.points == pytest.approx(lost.mean, abs=0.006)
            if of.standard_error is not None:
                assert of.standard_error == pytest.approx(lost.standard_error, abs=0.006)
