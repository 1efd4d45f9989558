"""What the reports make of finished runs: means over seeds, deficits, steps to a loss."""

import dataclasses
import math
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks" / "reports"))

import experiments
import paired
import recipe
import report_runs
import speedup
from simulated_task import LinearClasses

from tf_scalecom.simulate import SimulationConfig, run_files


def finished(folder, config, rows, diverged=False):
    """A folder as a run leaves it."""
    run_files.open_config(folder, LinearClasses(), config)
    records, evaluations = run_files.open_tables(folder, last_step=0)
    steps = rows[-1]["step"]
    records.append({"step": steps, "bytes_sent": 1_000.0, "bytes_total": 4_000.0 * steps})
    for row in rows:
        evaluations.append(row)
    run_files.write_result(folder, {"step": rows[-1]["step"], "diverged": diverged})


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
    experiment = dataclasses.replace(
        experiments.IMAGE_64,
        arms=(
            experiments.Arm("dense", {"method": "dense"}, (0, 1, 2)),
            experiments.Arm("compressed", {}, (0, 1)),
            experiments.Arm("too fast", {"learning_rate": 9.0}),
            experiments.Arm("not done", {"beta": 0.5}),
        ),
    )
    accuracies = {
        ("dense", 0): 0.92,
        ("dense", 1): 0.91,
        ("compressed", 0): 0.915,
        ("compressed", 1): 0.895,
        ("too fast", 0): 0.1,
    }
    for key, accuracy in accuracies.items():
        config = experiment.configs()[key]
        row = {"step": 3_000, "accuracy": accuracy}
        folder = tmp_path / experiment.task / config.name
        finished(folder, config, [row], diverged=key[0] == "too fast")
    recipe.print_table(experiment, recipe.outcomes(experiment, only_done=True))
    rows = capsys.readouterr().out.splitlines()[-3:]
    assert rows[0] == "| dense | 1.0 | 1.0 | 0.2 | 2 | 91.50 ± 0.50 |  |  |"
    # Lost: 0.5 and 1.5 points; t of one degree of freedom is 6.314.
    assert rows[1] == "| compressed | 1.0 | 1.0 | 0.2 | 2 | 90.50 ± 1.00 | 1.00 ± 0.50 | 4.16 |"
    assert rows[2].startswith("| too fast | 1.0 | 1.0 | 0.2 | 1 | diverged |")


def test_every_experiment_has_runs_of_its_own_and_a_dense_arm_first():
    for experiment in experiments.EXPERIMENTS:
        configs = experiment.configs()
        assert len(set(configs.values())) == len(configs)
        assert configs[experiment.arms[0].name, 0].method == "dense"
