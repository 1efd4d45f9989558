"""A run from its folder: started, gone on with, or already done."""

import pathlib
import time
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tf_scalecom.base.terminal import printable
from tf_scalecom.simulate import run_files
from tf_scalecom.simulate.config import SimulationConfig
from tf_scalecom.simulate.simulation import Diverged, Simulation
from tf_scalecom.simulate.task import Task


def run_all(
    task: Task,
    configs: Sequence[SimulationConfig],
    out: pathlib.Path,
    save_seconds: float = 300.0,
) -> list[pathlib.Path]:
    """Makes the runs that are not done yet, and prints how far they are.

    Process-wide, it asks TensorFlow for determinism, so that a run that was ended goes on to the
    same end.

    Args:
        task: model and data.
        configs: the runs.
        out: every run gets a folder of its own under it, named after its options.
        save_seconds: time between saved states.

    Returns:
        The runs' folders, in order.
    """
    tf.config.experimental.enable_op_determinism()
    folders = [out / config.name for config in configs]
    for number, (config, folder) in enumerate(zip(configs, folders, strict=True), start=1):
        print(f"run {number} of {len(configs)}: {config.name}", flush=True)
        run(
            task,
            config,
            folder,
            save_seconds,
            lambda line: print(f"  {printable(line)}", flush=True),
        )
    return folders


def run(
    task: Task,
    config: SimulationConfig,
    folder: pathlib.Path,
    save_seconds: float = 300.0,
    report: Callable[[str], None] = print,
) -> dict:
    """Trains to the end, from where the folder's state is, if it has one.

    A run that was killed and goes on ends as if it had not been killed, bit for bit, on the same
    machine under TensorFlow's op determinism.

    Args:
        task: model and data.
        config: the options.
        folder: for this run alone.
        save_seconds: time between saved states.
        report: takes a line of progress.

    Returns:
        {"step", "bytes_total", "diverged", the last evaluation's figures unless it diverged}, which
        result.json holds.
    """
    run_files.open_config(folder, task, config)
    if (result := run_files.read_result(folder, config.steps)) is not None:
        report(f"already done: {_figures(result)}")
        return result
    keras.utils.clear_session()  # of the run before
    simulation = Simulation(task, config)
    run_files.restore_state(folder, simulation)
    evaluation = run_files.last_evaluation(folder, config, simulation.step)
    with run_files.writing(folder):
        records, evaluations = run_files.open_tables(folder, config, simulation.step)
    clock = _Clock(simulation.step, config.steps)
    last_save = time.monotonic()
    diverged = False
    while simulation.step < config.steps and not diverged:
        next_step = simulation.step + config.local_steps
        is_record = next_step % config.record_every == 0 or next_step == config.steps
        try:
            measured = simulation.advance(measure=is_record)
        except Diverged as end:
            report(str(end))
            diverged = True
            continue
        if is_record:
            with run_files.writing(folder):
                records.append({"step": simulation.step, **measured})
        if simulation.step % config.evaluate_every == 0 or simulation.step == config.steps:
            evaluation = simulation.evaluate()
            row = {"step": simulation.step, "bytes_total": simulation.bytes_total, **evaluation}
            with run_files.writing(folder):
                evaluations.append(row)
        if is_record:
            report(
                f"{clock.progress(simulation.step)}, loss {measured['loss']:.4f}"
                + (f", {_figures(evaluation)}" if evaluation else "")
            )
        if time.monotonic() - last_save >= save_seconds:
            with run_files.writing(folder):
                run_files.save_state(folder, simulation)
            last_save = time.monotonic()
    result = {
        "step": simulation.step,
        "bytes_total": simulation.bytes_total,
        "diverged": diverged,
        **({} if diverged else evaluation),
    }
    with run_files.writing(folder):
        run_files.write_result(folder, result)
    return result


class _Clock:
    """Says how far a run is and how long the rest will take."""

    def __init__(self, first_step: int, steps: int):
        self._first_step = first_step
        self._steps = steps
        self._start = time.monotonic()

    def progress(self, step: int) -> str:
        per_step = (time.monotonic() - self._start) / (step - self._first_step)
        left = round(per_step * (self._steps - step))
        rate = f"{1 / per_step:.2f} steps/s, {left // 60}:{left % 60:02d} min left"
        return f"step {step:,} of {self._steps:,}, {rate}"


def _figures(values: dict) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )
