"""How alike the learners' residuals become, and how good a leader's choice is, over the steps.

    python benchmarks/reports/likeness.py       -> docs/pictures/likeness.png and a table

8 learners of 16 images, 100x, exact selection as in the paper, SGD at a base rate and at 8 times
that, each with beta 1, 0.3 and 0.1.
"""

from report_runs import column, late_mean, save, simulated

from tf_scalecom.base.pictures import pyplot
from tf_scalecom.simulate import SimulationConfig, plots

RATES = {"base rate": 0.05, "8 times the rate": 0.4}
BETAS = (1.0, 0.3, 0.1)
MEASURES = {
    "residual_cosine_distance": "mean cosine distance of two residuals",
    "hamming_distance": "Hamming distance leader to true top-k / 2k",
}


def config(rate: float, beta: float, **changes) -> SimulationConfig:
    """A run of this report, which `contraction.py` looks at too."""
    options = {
        "learners": 8,
        "batch_size": 16,
        "steps": 400,
        "decay": "constant",
        "selection": "exact",
        "record_every": 20,
        "evaluate_every": 400,
        "learning_rate": rate,
        "beta": beta,
    }
    return SimulationConfig(**options | changes)


def main():
    """Runs, prints the table, draws."""
    configs = {(name, beta): config(RATES[name], beta) for name in RATES for beta in BETAS}
    folders = simulated(list(configs.values()))
    print("| rate | beta | cosine distance | Hamming distance / 2k | test accuracy |")
    print("|---|---|---|---|---|")
    for (name, beta), run_config in configs.items():
        folder = folders[run_config]
        cosine, hamming = (late_mean(folder, measure) for measure in MEASURES)
        _, accuracy = plots.column(folder, "evaluations.csv", "accuracy")
        print(f"| {name} | {beta} | {cosine:.2f} | {hamming:.2f} | {100 * accuracy[-1]:.1f} % |")

    figure, axes = pyplot().subplots(1, 2, figsize=(11, 4))
    for axis, (measure, title) in zip(axes, MEASURES.items(), strict=True):
        for (name, beta), run_config in configs.items():
            axis.plot(
                *column(folders[run_config], measure),
                color=f"C{BETAS.index(beta)}",
                linestyle="-" if name == "base rate" else "--",
                label=f"{name}, beta {beta}",
            )
        axis.set_xlabel("step")
        axis.set_ylabel(title)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    save(figure, "likeness.png")


if __name__ == "__main__":
    main()
