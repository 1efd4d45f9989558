"""The contraction bound of the paper against what a step really leaves.

    python benchmarks/reports/contraction.py    -> docs/pictures/contraction.png and a table

|x - CLT(x)|^2 / |x|^2 of x = sum of compensated gradients, the bound from the Hamming distance,
and exact top-k's own gamma0. The runs of `likeness.py` with beta 1 and 0.1 at the high rate, and
the same by chunk-wise selection.
"""

from likeness import RATES, config
from report_runs import column, late_mean, save, simulated

from tf_scalecom.base.pictures import pyplot

RATE = RATES["8 times the rate"]
RUNS = {
    "exact, beta 1": config(RATE, 1.0),
    "exact, beta 0.1": config(RATE, 0.1),
    "10 per chunk, beta 0.1": config(RATE, 0.1, selection="chunk", chunk_keep=10),
    "1 per chunk, beta 0.1": config(RATE, 0.1, selection="chunk"),
}
MEASURES = {"contraction_bound": "bound", "contraction": "measured", "gamma0": "exact top-k"}


def main():
    """Runs, prints the table, draws."""
    folders = simulated(list(RUNS.values()))
    print("| selection | Hamming / 2k | bound | measured | exact top-k (gamma0) |")
    print("|---|---|---|---|---|")
    figure, axes = pyplot().subplots(1, len(RUNS), figsize=(13, 3.6), sharey=True)
    for axis, (name, run_config) in zip(axes, RUNS.items(), strict=True):
        folder = folders[run_config]
        names = ("hamming_distance", *MEASURES)
        print(f"| {name} | " + " | ".join(f"{late_mean(folder, n):.3f}" for n in names) + " |")
        for measure, label in MEASURES.items():
            axis.plot(*column(folder, measure), label=label)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of |x|^2 that a step leaves")
    axes[0].legend()
    save(figure, "contraction.png")


if __name__ == "__main__":
    main()
