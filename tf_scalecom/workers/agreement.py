"""What workers must have in common, and the words for where they differ.

Workers that differ in a shape, a hyper-parameter or a version do not fail by themselves: they wait
for each other in collectives that do not match, or train on with different numbers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.compat.keras_objects import learning_rate_class

# Key of a description for the path of the variable that it describes. People are shown it; it is
# not compared, as each process counts Keras's names up for itself.
VARIABLE = "variable's path"

_SAME_ITERATIONS = (
    "`iterations` says which replica leads a step and what a schedule gives: restore an optimizer, "
    "or set its `iterations`, on all workers or on none."
)
_SHOWN = 5
_SHOWN_OF_PATH = 100
_ABSENT = "nothing"


def differences(descriptions: Sequence, names: Sequence[str]) -> list[str]:
    """Where descriptions differ.

    Args:
        descriptions: one nested structure of dicts, lists and plain values for each worker.
        names: the workers' names.

    Returns:
        One line for each value that is not the same everywhere, e.g.
        "inner.momentum: 0.9 (worker 0, worker 2), 0.5 (worker 1)", or of a variable
        "shape.1: 32 (dense/kernel on worker 0), 33 (dense/kernel on worker 1)".
    """
    flat = [{place: rest for place, *rest in _flattened(d)} for d in descriptions]
    lines = []
    for place in dict.fromkeys(place for description in flat for place in description):
        holders: dict[str, list[str]] = {}
        for name, description in zip(names, flat, strict=True):
            value, path = description.get(place, (None, ""))
            value = repr(value) if place in description else _ABSENT
            # The path of the first of those who have the value stands for all of theirs.
            on = f"{_shortened(path)} on " if path and value not in holders else ""
            holders.setdefault(value, []).append(on + name)
        if len(holders) > 1:
            values = (f"{value} ({', '.join(who)})" for value, who in holders.items())
            lines.append(f"{place}: {', '.join(values)}")
    return lines


def compared(description) -> dict[str, object]:
    """What `differences` compares of a description: place -> value."""
    return {place: value for place, value, _ in _flattened(description)}


def _shortened(path):
    return path if len(path) <= _SHOWN_OF_PATH else "..." + path[-_SHOWN_OF_PATH:]


def check_alike(what: str, descriptions: Sequence, names: Sequence[str], advice: str) -> None:
    """Raises unless all descriptions are equal.

    Args:
        what: the thing described and where it should be alike, e.g. "ScaleComOptimizer on all
            workers".
        descriptions, names: as in `differences`.
        advice: what to do about a difference.

    Raises:
        ValueError: They are not; the message lists the differences.
    """
    lines = differences(descriptions, names)
    if lines:
        raise ValueError(
            f"{what}: expected no difference, received\n  "
            + "\n  ".join(shortened(lines))
            + f"\n{advice}"
        )


def shortened(lines: list[str]) -> list[str]:
    """The first few of what `differences` returned, and how many more there are."""
    more = len(lines) - _SHOWN
    return lines[:_SHOWN] + [f"and {more} more differences"] * (more > 0)


def describe_optimizer(optimizer: keras.optimizers.Optimizer, constant_rate: bool = True) -> dict:
    """The class and hyper-parameters of an optimizer, as JSON holds them.

    Not the names, which count up in each process. Of a lambda nothing but that it is one: Keras
    would show its byte code, with the place of its file.

    Args:
        optimizer: the optimizer.
        constant_rate: whether to tell a learning rate that is a variable, which callbacks change.
    """
    try:
        with tf.init_scope():  # the rate can be read in no graph
            config = keras.saving.serialize_keras_object(optimizer)
    except NotImplementedError:
        # Its schedule is a class of the user's own without `get_config`, as in many tutorials.
        inner = getattr(optimizer, "inner_optimizer", None)
        config = {
            "class_name": type(optimizer).__name__,
            "learning_rate": learning_rate_class(optimizer),
            "inner_optimizer": None if inner is None else describe_optimizer(inner),
        }
        for name, value in vars(optimizer).items():
            if not name.startswith("_") and isinstance(value, (bool, int, float, str)):
                config[name] = value
    return _to_be_alike(config, constant_rate)


def optimizer_classes(description: Mapping) -> list[str]:
    """Names of the classes in what `describe_optimizer` returned, from the outside inwards."""
    inner = description.get("config", description).get("inner_optimizer")
    return [description["class_name"], *(optimizer_classes(inner) if inner else [])]


def _to_be_alike(config, constant_rate):
    if not isinstance(config, Mapping):
        return config
    if config.get("class_name") == "__lambda__":
        return "a lambda"
    told = {}
    for key, value in config.items():
        if key == "learning_rate" and isinstance(value, float):
            if constant_rate:
                told[key] = float(str(np.float32(value)))  # as it was written, e.g. 0.1
        elif key != "name":
            told[key] = _to_be_alike(value, constant_rate)
    return told


def describe_variables(variables: Sequence[keras.Variable]) -> list[dict]:
    """What of variables is to be alike: all but the numbers that make names unique in a process."""
    return [
        {
            VARIABLE: variable.path,
            "name": re.sub(r"_\d+$", "", variable.name),
            "shape": list(variable.shape),
            "dtype": variable.dtype,
            "trainable": variable.trainable,
        }
        for variable in variables
    ]


def require_same_iterations(workers, optimizers: Iterable[keras.optimizers.Optimizer]) -> None:
    """Raises on all workers unless each optimizer has made as many steps on all.

    Args:
        workers: a `Workers`.
        optimizers: the same ones on all workers.
    """
    with tf.init_scope():
        steps = [int(optimizer.iterations.numpy()) for optimizer in optimizers]
    workers.require_alike("the optimizers", {"iterations": steps}, _SAME_ITERATIONS)


def _flattened(structure, place="", path="") -> Iterator[tuple[str, object, str]]:
    """Place, value and path of the variable, "" without one, of each value in a description."""
    children: Iterable[tuple[object, object]]
    if isinstance(structure, dict):
        path = structure.get(VARIABLE, path)
        children = ((key, child) for key, child in structure.items() if key != VARIABLE)
    elif isinstance(structure, (list, tuple)):
        children = enumerate(structure)
        yield f"{place}.length" if place else "length", len(structure), path
    else:
        yield place, structure, path
        return
    for key, child in children:
        yield from _flattened(child, f"{place}.{key}" if place else str(key), path)
