"""All of a training run that its processes hold: read out, written back, and described.

    state = read(model)          # name -> one array per local replica
    like = outline(model)        # the same without the values, which takes no time
    write(model, state)
    describe(model)              # what must not change between the two

What metrics have counted in an epoch is read and written by functions of its own.

A name is "model.3", "optimizer.0" or "residual.2": the place of the variable in a group, which is
its identity across processes; Keras's names and paths are not unique. Optimizers besides
`model.optimizer` have groups of their own, by the attribute that holds one: "optimizer[go].0".
"""

from collections.abc import Mapping
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.reduction.variables import is_summable
from tf_scalecom.state import model_objects
from tf_scalecom.workers.agreement import describe_optimizer


class Kept(NamedTuple):
    """The values of one variable.

    Attributes:
        parts: one array per local replica, in the variable's shape and dtype.
        summable: whether replicas differ, and only the sum over all of them means something.
    """

    parts: list[np.ndarray]
    summable: bool = False


State = Mapping[str, Kept]

_MAIN = "optimizer"  # the attribute of `compile`'s


def read(model: keras.Model) -> dict[str, Kept]:
    """The state of a compiled and built model."""
    return {
        name: Kept([part.numpy() for part in _parts(model, variable)], is_summable(variable))
        for name, variable in _variables(model, model_objects.optimizers(model)).items()
    }


def outline(model: keras.Model) -> dict[str, Kept]:
    """What `read` returns, of zeros that take no memory."""
    return {
        name: Kept([_zeros(part) for part in _parts(model, variable)], is_summable(variable))
        for name, variable in _variables(model, model_objects.optimizers(model)).items()
    }


def read_metrics(model: keras.Model) -> dict[str, Kept]:
    """What the metrics of a model have counted: each replica what it has seen."""
    return {
        name: Kept([part.numpy() for part in _parts(model, variable)])
        for name, variable in _metrics(model).items()
    }


def write(model: keras.Model, state: State) -> None:
    """Sets the state of a model.

    Args:
        model: compiled and built like the one that was read.
        state: what `read` returned, or a part of it; variables that are not in it stay.
    """
    _write(model, _variables(model, model_objects.optimizers(model)), state)


def write_metrics(model: keras.Model, state: State) -> None:
    """Sets what metrics have counted; `state` is what `read_metrics` returned."""
    _write(model, _metrics(model), state)


def describe(model: keras.Model) -> dict:
    """What a state fits to.

    Returns:
        "variables": name -> {"shape": list, "dtype": name}, and of optimizers' slots "role", what
        Keras calls them. "optimizers": path -> {"config": class and hyper-parameters, without the
        learning rate where that is a variable, and so part of the state; "variables": places among
        the model's of those it was built with, or None before}.
    """
    optimizers = model_objects.optimizers(model)
    variables = _variables(model, optimizers)
    roles = _roles(variables, optimizers)
    places = {id(variable): place for place, variable in enumerate(model.variables)}
    return {
        "variables": {
            name: {
                "shape": list(variable.shape),
                "dtype": variable.dtype,
                **({"role": roles[name]} if name in roles else {}),
            }
            for name, variable in variables.items()
        },
        "optimizers": {
            path: {
                "config": describe_optimizer(optimizer, constant_rate=False),
                "variables": (
                    [places.get(id(variable)) for variable in _trained(optimizer)]
                    if optimizer.built
                    else None
                ),
            }
            for path, optimizer in optimizers.items()
        },
    }


def describe_metrics(model: keras.Model) -> dict:
    """What the state of the metrics fits to: name -> {"shape": list, "dtype": name}."""
    return {
        name: {"shape": list(variable.shape), "dtype": variable.dtype}
        for name, variable in _metrics(model).items()
    }


def build_optimizer(model: keras.Model) -> None:
    """Gives the optimizer of a compiled model its variables, if it has none yet."""
    if model.optimizer is not None and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


def build_as_described(model: keras.Model, description: Mapping) -> None:
    """Builds the optimizers that had been built in a model of this description.

    Optimizers that `fit` does not know are built in their first step, after a restore.

    Args:
        model: has the same variables and optimizers.
        description: what `describe` returned.

    Raises:
        ValueError: One was built for variables that the model does not hold.
    """
    for path, optimizer in model_objects.optimizers(model).items():
        places = description["optimizers"].get(path, {}).get("variables")
        if optimizer.built or places is None:
            continue
        if None in places:
            raise ValueError(
                f"BackupAndRestore: expected the optimizer {path!r} to be built before `fit`, for "
                "variables of which the model does not hold all; received one that is not, unlike "
                "that of the backup. Call its `build(variables)` first."
            )
        with model.distribute_strategy.scope():
            optimizer.build([model.variables[place] for place in places])


def group_of(name: str) -> str:
    """The group of a variable. All that are summable in one have as many replicas."""
    return name.rpartition(".")[0]


def belongs_to(name: str, path: str) -> bool:
    """Whether a variable is that of the optimizer of a path."""
    return group_of(name) in (_group("optimizer", path), _group("residual", path))


def _group(kind, path):
    return kind if path == _MAIN else f"{kind}[{path}]"


def _variables(model, optimizers) -> dict[str, keras.Variable]:
    groups = {"model": list(model.variables)}
    taken = {id(variable) for variable in model.variables}
    for path, optimizer in optimizers.items():
        for variable in optimizer.variables:
            kind = "residual" if is_summable(variable) else "optimizer"
            if id(variable) not in taken:
                groups.setdefault(_group(kind, path), []).append(variable)
    return {
        f"{group}.{place}": variable
        for group, variables in groups.items()
        for place, variable in enumerate(variables)
    }


def _metrics(model) -> dict[str, keras.Variable]:
    return {f"metric.{place}": v for place, v in enumerate(model.metrics_variables)}


def _write(model, variables, state):
    for name, variable in variables.items():
        if name in state:
            for part, value in zip(_parts(model, variable), state[name].parts, strict=True):
                part.assign(value)


def _parts(model, variable) -> tuple[tf.Variable, ...]:
    return model.distribute_strategy.experimental_local_results(variable.value)


def _zeros(variable):
    return np.broadcast_to(np.zeros((), variable.dtype.as_numpy_dtype), variable.shape)


def _trained(optimizer):
    # Keras has no other word for what an optimizer was built with.
    return optimizer._trainable_variables


def _roles(variables, optimizers) -> dict[str, str]:
    """Name -> role, e.g. "momentum", of the variables that Keras named after the one they are for.

    Two optimizers of one class may keep different things in variables of the same shapes.
    """
    trained = {v.path.replace("/", "_") for o in optimizers.values() for v in _trained(o)}
    roles = {}
    for name, variable in variables.items():
        stem, _, role = variable.name.rpartition("_")
        while stem and stem not in trained:
            stem, _, more = stem.rpartition("_")
            role = f"{more}_{role}"
        if stem and not name.startswith("model."):
            roles[name] = role
    return roles
