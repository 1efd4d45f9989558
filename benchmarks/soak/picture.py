"""The soak's samples and what they look like, as docs/ shows them."""

import csv
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from samples import BOUNDS, Sample, lives

from tf_scalecom.base.pictures import pyplot

_NAMES = {"memory_kib": "memory, MiB", "open_files": "open files"}


def publish(every: Mapping[str, Sequence[Sample]], docs: pathlib.Path) -> None:
    """Writes `data/soak.csv` and `pictures/soak.png`.

    Args:
        every: name of a worker or of the launcher -> its samples.
        docs: the documentation's folder.
    """
    samples = [one for of_one in every.values() for one in of_one]
    start = min(one.time for one in samples)
    with (docs / "data" / "soak.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in dataclasses.fields(Sample))
        for one in samples:
            row = dataclasses.replace(one, time=round(one.time - start, 1))
            writer.writerow(dataclasses.astuple(row))
    plot = pyplot()
    if plot is not None:
        _draw(plot, every, docs / "pictures" / "soak.png")


def _draw(plot, every, path):
    figure, axes = plot.subplots(len(BOUNDS), 1, figsize=(9, 7), sharex=True)
    for what, ax in zip(BOUNDS, axes, strict=True):
        for place, (who, samples) in enumerate(every.items()):
            for life in lives(samples):
                values = [getattr(one, what) / (1024 if "kib" in what else 1) for one in life]
                label = who if life[0] is samples[0] else None
                ax.plot([one.step for one in life], values, color=f"C{place}", label=label, lw=1)
        ax.set_ylabel(_NAMES.get(what, what))
        ax.set_ylim(bottom=0)
        ax.grid(alpha=0.3)
    axes[0].legend(ncols=len(every), fontsize=8, loc="lower right")
    axes[-1].set_xlabel("step; a line ends where a worker was killed")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plot.close(figure)
