"""What the reports share: the tasks, the folders of their runs, the form of their pictures."""

import pathlib
import sys
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_scalecom.base.pictures import pyplot
from tf_scalecom.simulate import SimulationConfig, load_task, plots, run_all
from tf_scalecom.simulate.run_files import RECORDS, read_result

ROOT = pathlib.Path(__file__).resolve().parents[2]
TASK = ROOT / "models" / "image" / "task.py"
TASKS = {
    "image": TASK,
    "small_image": ROOT / "models" / "image" / "small_task.py",
    "fast_image": ROOT / "models" / "image" / "fast_task.py",
    "translation": ROOT / "models" / "translation" / "task.py",
    "next_character": ROOT / "models" / "translation" / "next_character_task.py",
    "speech": ROOT / "models" / "speech" / "task.py",
}
RUNS = ROOT / "runs" / "reports"
PICTURES = ROOT / "docs" / "pictures"


def simulated(
    configs: Sequence[SimulationConfig], task: str = "image"
) -> dict[SimulationConfig, pathlib.Path]:
    """Makes the runs that are not done yet; config -> folder."""
    if pyplot() is None:
        sys.exit("Expected matplotlib to draw the report; received none: pip install matplotlib.")
    tf.get_logger().setLevel("ERROR")
    folders = run_all(load_task(TASKS[task]), configs, RUNS / task)
    return dict(zip(configs, folders, strict=True))


def done(
    configs: Sequence[SimulationConfig], task: str = "image"
) -> dict[SimulationConfig, pathlib.Path]:
    """Those of the runs that are done; config -> folder."""
    folders = {config: RUNS / task / config.name for config in configs}
    return {c: folder for c, folder in folders.items() if read_result(folder) is not None}


def column(folder: pathlib.Path, name: str) -> tuple[list[int], list[float]]:
    """(steps, values) of a run's records."""
    return plots.column(folder, RECORDS, name)


def late_mean(folder: pathlib.Path, name: str) -> float:
    """Mean over the second half of a run's records."""
    _, values = column(folder, name)
    return sum(values[len(values) // 2 :]) / len(values[len(values) // 2 :])


def legend_beside(figure, handles: Mapping[str, object]) -> None:
    """One legend for all panels, {label: what was drawn}, above them."""
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))


def save(figure, name: str) -> None:
    """Writes a picture of the docs."""
    PICTURES.mkdir(exist_ok=True)
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    figure.savefig(PICTURES / name, dpi=80)
    print(f"{(PICTURES / name).relative_to(ROOT)}")
