"""What 100x loses to dense, by the number of steps: when the paper's own optimizers stop mattering.

    python benchmarks/reports/recipe.py --only length    makes the runs
    python benchmarks/reports/length.py                  -> docs/pictures/length.png, and the table

It reads docs/data/recipe.csv.
"""

from collections.abc import Mapping

from experiments import LENGTH_ARMS, LENGTHS
from paired import Estimate, deficit, text
from recipe import read
from report_runs import save

from tf_scalecom.base.pictures import pyplot

_COLORS = ("tab:orange", "tab:olive", "tab:blue", "tab:red", "tab:green")


def deficits() -> dict[str, dict[int, Estimate]]:
    """Optimizer -> steps -> points that it loses compressed, to the same one dense."""
    percents: dict[tuple[str, str], dict[int, float]] = {}
    for row in read():
        of_arm = percents.setdefault((row["experiment"], row["arm"]), {})
        of_arm[int(row["seed"])] = float(row["percent"])
    found: dict[str, dict[int, Estimate]] = {}
    for experiment in LENGTHS:
        for name, arm in LENGTH_ARMS.items():
            dense = percents.get((experiment.name, arm.dense))
            compressed = percents.get((experiment.name, name))
            if dense and compressed:
                lost = deficit(dense, compressed)
                found.setdefault(name, {})[experiment.options["steps"]] = lost
    return found


def print_table(found: Mapping[str, Mapping[int, Estimate]]) -> None:
    """A row for each number of steps."""
    print(f"| steps | {' | '.join(found)} |")
    print("|---" * (len(found) + 1) + "|")
    for steps in sorted({steps for of_arm in found.values() for steps in of_arm}):
        cells = [
            text(lost.mean, lost.standard_error) if (lost := of_arm.get(steps)) else ""
            for of_arm in found.values()
        ]
        print(f"| {steps:,} | {' | '.join(cells)} |")


def draw(found: Mapping[str, Mapping[int, Estimate]]) -> None:
    """A curve for each optimizer."""
    figure, axis = pyplot().subplots(figsize=(8, 5), layout="constrained")
    colors = dict(zip(LENGTH_ARMS, _COLORS, strict=True))
    for name, of_arm in found.items():
        means = [lost.mean for lost in of_arm.values()]
        axis.plot(list(of_arm), means, marker="o", color=colors[name], label=name)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlabel("steps")
    axis.set_ylabel("points lost to the same optimizer, dense")
    axis.set_title(LENGTHS[0].title.rpartition(",")[0] + ", 100x", fontsize=9)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2)
    save(figure, "length.png")


def main():
    """Prints the table, draws."""
    found = deficits()
    print_table(found)
    draw(found)


if __name__ == "__main__":
    main()
