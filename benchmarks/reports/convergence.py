"""Convergence: the figure that counts over the steps, dense and at several ratios, task by task.

    python benchmarks/reports/convergence.py -> docs/pictures/convergence.png

The runs are those of `recipe.py`, which prints where they end.
"""

import dataclasses

import numpy as np
from experiments import CONVERGENCE, CURVES, Experiment
from report_runs import legend_beside, save

from tf_scalecom.base.pictures import pyplot
from tf_scalecom.simulate import plots
from tf_scalecom.simulate.run_files import EVALUATIONS


def curves(experiment: Experiment) -> dict[str, tuple[list[int], np.ndarray]]:
    """Arm -> (steps, percent [seed, step]) of the runs that came to their end."""
    drawn = tuple(arm for arm in experiment.arms if arm.name in CURVES)
    found: dict[str, list] = {}
    folders = dataclasses.replace(experiment, arms=drawn).folders(only_done=False)
    for (arm, _), folder in folders.items():
        steps, values = plots.column(folder, EVALUATIONS, experiment.figure)
        if steps and steps[-1] == experiment.options["steps"]:
            found.setdefault(arm, []).append((steps, [100 * value for value in values]))
    return {
        arm: (runs[0][0], np.array([values for _, values in runs])) for arm, runs in found.items()
    }


def main():
    """Runs, draws: the mean of the seeds, and a band from the least to the greatest."""
    panels = {experiment: curves(experiment) for experiment in CONVERGENCE}
    rows = -(-len(panels) // 2)
    figure, axes = pyplot().subplots(
        rows, 2, figsize=(13, 4.2 * rows), squeeze=False, layout="constrained"
    )
    handles = {}
    for axis, (experiment, arms) in zip(axes.flat, panels.items(), strict=False):
        for arm, (steps, values) in arms.items():
            color, dashes = CURVES[arm], "--" if arm == "recipe, auto" else "-"  # over 400x
            (handles[arm],) = axis.plot(
                steps, values.mean(axis=0), marker=".", color=color, linestyle=dashes
            )
            axis.fill_between(steps, values.min(axis=0), values.max(axis=0), alpha=0.2, color=color)
        axis.set_title(experiment.title, fontsize=9)
        axis.set_xlabel("step")
        axis.set_ylabel(f"{experiment.figure.replace('_', ' ')}, %")
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    legend_beside(figure, handles)
    save(figure, "convergence.png")


if __name__ == "__main__":
    main()
