"""All of a training run that its processes hold: read out, written back, and described.

    state = read(model)          # name -> one array per local replica
    write(model, state)
    describe(model)              # what must not change between the two

A name is "model.3", "optimizer.0" or "residual.2": the place of the variable in its list, which is
its identity across processes; Keras's names and paths are not unique.
"""

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.agreement import describe_optimizer
from tf_scalecom.optimizer import scalecom_optimizer

State = Mapping[str, Sequence[np.ndarray]]


def read(model: keras.Model) -> dict[str, list[np.ndarray]]:
    """The state of a compiled and built model.

    Returns:
        For each variable one array per replica of this process, in the variable's shape and dtype.
    """
    return {name: [p.numpy() for p in parts] for name, parts in _replicas(model).items()}


def write(model: keras.Model, state: State) -> None:
    """Sets the state of a model.

    Args:
        model: compiled and built like the one that was read.
        state: what `read` returned.
    """
    for name, parts in _replicas(model).items():
        for part, value in zip(parts, state[name], strict=True):
            part.assign(value)


def describe(model: keras.Model) -> dict:
    """What a state fits to.

    Returns:
        "variables": name -> {"shape": list, "dtype": name}. "optimizer": hyper-parameters, without
        the learning rate where that is a variable, and so part of the state.
    """
    variables = {
        name: {"shape": parts[0].shape.as_list(), "dtype": parts[0].dtype.name}
        for name, parts in _replicas(model).items()
    }
    optimizer = describe_optimizer(model.optimizer, constant_rate=False)
    return {"variables": variables, "optimizer": optimizer}


def build_optimizer(model: keras.Model) -> None:
    """Gives the optimizer of a compiled model its variables, if it has none yet."""
    if not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


def is_residual(name: str) -> bool:
    """Whether a name is that of a residual: different on all replicas, and their sum counts."""
    return name.startswith("residual.")


def _replicas(model) -> dict[str, tuple[tf.Variable, ...]]:
    scalecom = scalecom_optimizer(model.optimizer)
    residuals = [] if scalecom is None else scalecom.residual_variables
    apart = {id(residual) for residual in residuals}
    lists = {
        "model": model.variables,
        "optimizer": [v for v in model.optimizer.variables if id(v) not in apart],
        "residual": residuals,
    }
    unwrap = model.distribute_strategy.experimental_local_results
    return {
        f"{kind}.{place}": unwrap(variable.value)
        for kind, variables in lists.items()
        for place, variable in enumerate(variables)
    }
