"""Steps to a fixed loss against the number of learners: the linear speed-up of the theorem.

    python benchmarks/reports/speedup.py        -> docs/pictures/speedup.png and a table

8 images a learner, 128,000 images in all for every n, no momentum, a learning rate in proportion to
n (the theorem's at a fixed number of images), dense and CLT-k at 100x. The loss is that of the test
images; between two evaluations its logarithm is taken as a straight line.
"""

import math
import pathlib

import numpy as np
from report_runs import save, simulated

from tf_scalecom.base.pictures import pyplot
from tf_scalecom.simulate import SimulationConfig, plots
from tf_scalecom.simulate.run_files import EVALUATIONS

LEARNERS = (2, 8, 32, 64)
BATCH, IMAGES, EVALUATIONS_PER_RUN = 8, 128_000, 25
RATE_PER_LEARNER = 0.005
TARGET = 0.45
METHODS = {"dense": {"method": "dense"}, "CLT-k 100x, beta 0.3": {"beta": 0.3}}


def config(learners: int, options: dict) -> SimulationConfig:
    """The run of one method with n learners."""
    steps = IMAGES // (BATCH * learners)
    return SimulationConfig(
        **options,
        learners=learners,
        batch_size=BATCH,
        steps=steps,
        decay="constant",
        learning_rate=RATE_PER_LEARNER * learners,
        record_every=steps,
        evaluate_every=steps // EVALUATIONS_PER_RUN,
    )


def steps_to(target: float, folder: pathlib.Path) -> float:
    """The first step at which the test loss is at the target; NaN if it never is."""
    steps, losses = plots.column(folder, EVALUATIONS, "test_loss")
    for i in range(1, len(steps)):
        if losses[i] <= target:
            places = [math.log(losses[i]), math.log(losses[i - 1])]
            return float(np.interp(math.log(target), places, [steps[i], steps[i - 1]]))
    return math.nan


def main():
    """Runs, prints the table, draws."""
    configs = {(m, n): config(n, o) for m, o in METHODS.items() for n in LEARNERS}
    folders = simulated(list(configs.values()), "fast_image")
    taken = {key: steps_to(TARGET, folders[c]) for key, c in configs.items()}
    print("| learners | " + " | ".join(f"{m}: steps | times n / 2" for m in METHODS) + " |")
    print("|---" * (1 + 2 * len(METHODS)) + "|")
    for n in LEARNERS:
        cells = [f"{taken[m, n]:.0f} | {taken[m, n] * n / 2:.0f}" for m in METHODS]
        print(f"| {n} | {' | '.join(cells)} |")

    figure, axis = pyplot().subplots(figsize=(6, 4))
    for method in METHODS:
        axis.plot(LEARNERS, [taken[method, n] for n in LEARNERS], marker=".", label=method)
    first = taken["dense", LEARNERS[0]]
    axis.plot(LEARNERS, [first * LEARNERS[0] / n for n in LEARNERS], "k:", label="linear")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("learners")
    axis.set_ylabel(f"steps to a test loss of {TARGET}")
    axis.grid(alpha=0.3)
    axis.legend()
    save(figure, "speedup.png")


if __name__ == "__main__":
    main()
