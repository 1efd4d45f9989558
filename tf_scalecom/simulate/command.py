"""`python -m tf_scalecom simulate`: options, one or many runs, progress, plots."""

import argparse
import dataclasses
import itertools
import os
import pathlib
import shlex

from tf_scalecom.base.command_line import end, folder, number
from tf_scalecom.simulate.config import METHODS, SimulationConfig, value_types

DESCRIPTION = (
    "Train a model with 1 to 256 learners in this process, by the same algorithm code as on real "
    "workers. Every option below takes several values, separated by commas: all combinations are "
    "run. Runs of the same seed share initial weights and data. A run that was ended goes on where "
    "its last saved state is; one that is done is not repeated."
)
CODE_WITHOUT_OUTPUT = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all options: of the command, and of a run."""
    parser.add_argument("task", type=pathlib.Path, help="a Python file that defines build_task()")
    parser.add_argument(
        "--out",
        type=folder,
        default=pathlib.Path("runs/simulate"),
        metavar="DIR",
        help="one folder per run is put here, named after its options; default: %(default)s",
    )
    parser.add_argument(
        "--batch",
        type=pathlib.Path,
        metavar="FILE",
        help="run each line of this file: options, added to those given here; # is a comment",
    )
    parser.add_argument(
        "--save-minutes",
        type=number,
        default=5.0,
        metavar="M",
        help="time between saved states; default: 5",
    )
    _add_run_options(parser)


def run_command(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Runs what the arguments ask for; returns the exit code."""
    import tensorflow as tf

    from tf_scalecom.simulate import plots, run_files, runs
    from tf_scalecom.simulate.task import TaskError, load_task

    tf.get_logger().setLevel("ERROR")  # it tells of every loop it makes of a vectorised operation
    try:
        configs = _configs(args)
        task = load_task(args.task)
    except ValueError as error:
        end(parser, error)
    try:
        folders = runs.run_all(task, configs, args.out, 60 * args.save_minutes)
        picture = args.out / plots.PICTURE
        with run_files.writing(args.out):
            is_drawn = plots.draw(folders, picture)
    except (run_files.UnusableFolder, TaskError) as error:
        end(parser, error)
    if is_drawn:
        print(f"{picture}: the curves of these runs")
    else:
        print("No plots, as matplotlib is not installed: pip install matplotlib, and run again.")
    return 0


def _configs(args) -> list[SimulationConfig]:
    """All runs, each once, in the order given."""
    given = _given(args)
    configs = _combined(given) if args.batch is None else _batch_configs(args.batch, given)
    return list(dict.fromkeys(configs))


def _batch_configs(path, given):
    """The runs of a file's lines, each with the options given for all."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError("no ordinary file")
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected --batch to name a text file; received {str(path)!r}: {error}. Correct it."
        ) from error
    parser = _LineParser(add_help=False)
    _add_run_options(parser)
    configs = []
    for line_number, line in enumerate(lines, start=1):
        try:
            if words := shlex.split(line, comments=True):
                configs += _combined(given | _given(parser.parse_args(words)))
        except ValueError as error:
            raise ValueError(f"{path}:{line_number}: {error}") from error
    if not configs:
        raise ValueError(
            f"Expected {path} to have lines of options; received none. Write one for each run."
        )
    return configs


class _LineParser(argparse.ArgumentParser):
    """Leaves it to the caller to say where the error is."""

    def error(self, message):
        raise ValueError(message)


def _combined(options) -> list[SimulationConfig]:
    """All combinations of the values, {option: values}."""
    return [
        SimulationConfig(**dict(zip(options, values, strict=True)))
        for values in itertools.product(*options.values())
    ]


def _given(args) -> dict[str, list]:
    names = [field.name for field in dataclasses.fields(SimulationConfig)]
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _add_run_options(parser):
    group = parser.add_argument_group("options of a run")
    for field in dataclasses.fields(SimulationConfig):
        choices = field.metadata["choices"]
        meaning = f"{field.metadata['help']}; default: {field.default}"
        if field.name == "method":
            meaning = "; ".join(f"{name}: {what}" for name, what in METHODS.items())
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=_values_of(value_types(field.name)),
            metavar=",".join(choices) if choices else field.name.upper(),
            help=meaning.replace("%", "%%"),
        )


def _values_of(kinds):
    return lambda text: [_value(part, kinds) for part in text.split(",")]


def _value(text, kinds):
    """The text as the first of these types that it fits."""
    for kind in kinds:
        try:
            return kind(text)
        except (TypeError, ValueError):  # None's type makes nothing of a text
            continue
    expected = "an integer" if int in kinds else "a number"
    raise argparse.ArgumentTypeError(f"expected {expected}, received {text!r}: correct the option")
