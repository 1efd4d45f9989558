"""Curves of a folder of runs."""

import pathlib
from collections.abc import Sequence

from tf_scalecom.base.pictures import pyplot
from tf_scalecom.base.whole_files import written_whole
from tf_scalecom.simulate import run_files

PICTURE = "curves.png"
_RECORDS = (
    ("loss", "training loss of the step"),
    ("residual_cosine_distance", "cosine distance of residuals"),
    ("hamming_distance", "Hamming distance to the true top-k / 2k"),
    ("contraction", "contraction |x - CLT(x)|^2 / |x|^2"),
    ("build_up", "elements of the sum / elements kept"),
)


def column(folder: pathlib.Path, table: str, name: str) -> tuple[list[int], list[float]]:
    """(steps, values) of a run's column, where it is not empty."""
    rows = [row for row in run_files.read_table(folder / table) if row.get(name)]
    return [int(row["step"]) for row in rows], [float(row[name]) for row in rows]


def draw(folders: Sequence[pathlib.Path], path: pathlib.Path) -> bool:
    """Draws every measure of the given runs over the steps, and the evaluations.

    Returns:
        False, and no picture, without matplotlib.
    """
    plt = pyplot()
    if plt is None:
        return False
    panels = [(run_files.RECORDS, name, title) for name, title in _RECORDS]
    tables = [f / run_files.EVALUATIONS for f in folders if (f / run_files.EVALUATIONS).exists()]
    first = next((row for table in tables for row in run_files.read_table(table)), {})
    names = [name for name in first if name not in run_files.EVALUATED_AT]
    panels = [(run_files.EVALUATIONS, name, f"evaluation: {name}") for name in names] + panels
    rows = -(-len(panels) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(12, 3.2 * rows), squeeze=False)
    for axis, (table, name, title) in zip(axes.flat, panels, strict=False):
        axis.set_title(title, fontsize=10, parse_math=False)  # of the task's own names
        axis.set_xlabel("step")
        for folder in folders:
            if (folder / table).exists():
                axis.plot(*column(folder, table, name), marker=".", label=folder.name)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", fontsize=7, bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    with written_whole(path) as aside:
        figure.savefig(aside, dpi=90, bbox_inches="tight")
    plt.close(figure)
    return True
