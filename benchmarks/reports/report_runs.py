"""What the reports share: the task, the folder of their runs, the form of their pictures."""

import pathlib
import sys
from collections.abc import Sequence

import tensorflow as tf

from tf_scalecom.simulate import SimulationConfig, load_task, plots, run_all
from tf_scalecom.simulate.run_files import RECORDS

ROOT = pathlib.Path(__file__).resolve().parents[2]
TASK = ROOT / "models" / "image" / "task.py"
RUNS = ROOT / "runs" / "reports"
PICTURES = ROOT / "docs" / "pictures"


def simulated(configs: Sequence[SimulationConfig]) -> dict[SimulationConfig, pathlib.Path]:
    """Makes the runs that are not done yet; config -> folder."""
    if plots.pyplot() is None:
        sys.exit("Expected matplotlib to draw the report; received none: pip install matplotlib.")
    tf.get_logger().setLevel("ERROR")
    return dict(zip(configs, run_all(load_task(TASK), configs, RUNS), strict=True))


def column(folder: pathlib.Path, name: str) -> tuple[list[int], list[float]]:
    """(steps, values) of a run's records."""
    return plots.column(folder, RECORDS, name)


def late_mean(folder: pathlib.Path, name: str) -> float:
    """Mean over the second half of a run's records."""
    _, values = column(folder, name)
    return sum(values[len(values) // 2 :]) / len(values[len(values) // 2 :])


def save(figure, name: str) -> None:
    """Writes a picture of the docs."""
    PICTURES.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(PICTURES / name, dpi=80)
    print(f"{(PICTURES / name).relative_to(ROOT)}")
