"""Gradient build-up: what a learner sends and what the sum holds, against the number of learners.

    python benchmarks/reports/build_up.py       -> docs/pictures/build_up.png and a table

Local top-k: each learner its own selection, so the union grows. CLT-k: the leader's for all.
100x, exact selection, 8 images per learner, 20 steps, the second half of which is averaged.
"""

from report_runs import late_mean, save, simulated

from tf_scalecom.base.pictures import pyplot
from tf_scalecom.simulate import SimulationConfig

LEARNERS = (2, 4, 8, 16, 32, 64, 128, 256)
METHODS = {"dense": "dense", "local_top_k": "local top-k", "clt_k": "CLT-k"}


def main():
    """Runs, prints the table, draws."""
    configs = [
        SimulationConfig(
            method=method,
            learners=learners,
            batch_size=8,
            steps=20,
            record_every=4,
            evaluate_every=20,
            learning_rate=0.05,
            selection="exact",
        )
        for learners in LEARNERS
        for method in ("local_top_k", "clt_k")
    ]
    # Its bytes are a formula: one step says them.
    configs += [
        SimulationConfig(method="dense", learners=n, batch_size=8, steps=1) for n in LEARNERS
    ]
    folders = simulated(configs)

    def values(method, name):
        return [late_mean(f, name) for c, f in folders.items() if c.method == method]

    sent = {method: values(method, "bytes_sent") for method in METHODS}
    unions = {method: values(method, "build_up") for method in ("local_top_k", "clt_k")}
    print("| learners | dense MB | local top-k MB | CLT-k MB | union local | union CLT-k |")
    print("|---|---|---|---|---|---|")
    for i, learners in enumerate(LEARNERS):
        megabytes = " | ".join(f"{sent[method][i] / 1e6:.3f}" for method in METHODS)
        print(
            f"| {learners} | {megabytes} | {unions['local_top_k'][i]:.1f} k "
            f"| {unions['clt_k'][i]:.2f} k |"
        )
    draw(sent, unions)


def draw(sent, unions):
    """Bytes on the left, unions on the right."""
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(11, 4))
    for method, label in METHODS.items():
        left.plot(LEARNERS, [b / 1e6 for b in sent[method]], marker=".", label=label)
    left.set_ylabel("MB sent per learner and step (formula)")
    for method, union in unions.items():
        color = f"C{list(METHODS).index(method)}"
        right.plot(LEARNERS, union, marker=".", label=METHODS[method], color=color)
    right.set_ylabel("union, in multiples of k (measured)")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("learners")
        axis.grid(alpha=0.3)
        axis.legend()
    save(figure, "build_up.png")


if __name__ == "__main__":
    main()
