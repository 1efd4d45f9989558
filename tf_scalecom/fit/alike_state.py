"""Whether all replicas hold the same weights, optimizers and learning rates.

A worker that has loaded other weights, given its optimizer another rate or changed a weight in a
callback of its own trains on without a word: gradients are the same on all, the models are not. So
workers compare what they hold before each epoch of `fit` and after the last one: 8 bytes of each
variable, read where it is.

What is each replica's own is left out: metrics, residuals, gradients that are being accumulated,
and moving averages of BatchNormalization, which are of a replica's own rows in Keras. Another
variable that is not trained may be meant so, too; where it differs, a line in the log says it.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tf_scalecom.compat.keras_objects import own_trainable_variables
from tf_scalecom.state import model_objects
from tf_scalecom.workers.agreement import shortened
from tf_scalecom.workers.workers import Workers

_RATE = (
    "Set a learning rate on all workers alike: a schedule or a callback that assigns it has to run "
    "on all of them."
)
_WEIGHT = (
    "Load or set weights on all workers alike, in a callback too. A variable that a layer assigns "
    'in `call` takes each worker\'s own values unless add_weight() is told aggregation="mean".'
)
_SLOT = "Load, restore or set an optimizer on all workers or on none."
_STATE = (
    "If a layer assigns it in `call`, it takes each worker's own values unless add_weight() is "
    'told aggregation="mean"; otherwise set it on all workers alike.'
)
_ROUNDING = (
    "The difference is as small as that of rounding, which is not the same on all kinds of CPU or "
    "GPU. With workers of one kind weights stay the same to the bit."
)
# Of the length of a weight's value.
_ROUNDING_PART = 1e-4

# Models of which a difference was said that is no error.
_said: weakref.WeakSet[keras.Model] = weakref.WeakSet()


class _Held(NamedTuple):
    """A variable that all replicas hold alike, and what to do if they do not."""

    variable: keras.Variable
    advice: str


def require_alike(model: keras.Model, workers: Workers, when: str) -> None:
    """Fails on all workers unless their replicas hold the same; a collective call.

    Args:
        model: a model in `fit`.
        workers: all of them.
        when: where in `fit`, for the message, e.g. "before epoch 2".

    Raises:
        ValueError: They do not; the message names the variables.
    """
    held = dict(_held(model))
    digests = {place: _digests(variable) for place, (variable, _) in held.items()}
    found = workers.unlike(digests, "weights, optimizers and learning rates")
    lines: dict[str, list[str]] = {}
    unlike = []
    for place, (variable, advice) in held.items():
        # An optimizer may have been built on one worker alone until its first step.
        parts = [worker.get(place) for worker in found or [digests] * len(workers.names)]
        if None not in parts and any(set(part) != {parts[0][0]} for part in parts):
            lines.setdefault(advice, []).append(_line(variable, parts, workers.names))
            unlike.append(variable)
    if not lines:
        return
    words = "\n  ".join(shortened([line for some in lines.values() for line in some]))
    is_rounding = found is not None and _is_rounding(unlike, workers)
    if lines.keys() != {_STATE} and not is_rounding:
        raise ValueError(
            f"fit, {when}: expected the same weights, optimizers and learning rates on all "
            f"workers, received\n  {words}\n{' '.join(lines)}"
        )
    if model not in _said:
        _said.add(model)
        advice = _ROUNDING if is_rounding else _STATE
        logging.warning(
            "tf_scalecom: fit, %s: not all workers hold the same\n  %s\n%s", when, words, advice
        )


def _is_rounding(variables, workers):
    """Whether variables differ as if computed alike, but rounded otherwise; a collective call."""
    if not all(v.dtype.startswith(("float", "bfloat")) and v.shape != () for v in variables):
        return False
    draw = np.random.default_rng(0)
    # Where values lie along a direction: unlike ones lie a good part of their length apart.
    places, lengths = [], []
    for variable in variables:
        value = np.asarray(variable.numpy(), np.float64).ravel()
        places.append(float(value @ draw.choice([-1.0, 1.0], value.size)))
        lengths.append(float(np.linalg.norm(value)))
    of_all = np.array(workers.gather([places, lengths], "weights that differ"))
    apart, length = np.ptp(of_all[:, 0], axis=0), of_all[:, 1].max(axis=0)
    return bool(np.all(apart <= _ROUNDING_PART * length))


def _held(model) -> Iterator[tuple[str, _Held]]:
    """By a name that is the same on all workers, learning rates first."""
    rates, slots, accumulated = [], [], set()
    for path, optimizer in model_objects.optimizers(model).items():
        inside = list(_with_inner(optimizer))
        of_rates = {id(each._learning_rate) for each in inside}
        accumulated |= {
            id(v) for each in inside for v in getattr(each, "_accumulated_gradients", ())
        }
        for place, variable in enumerate(optimizer.variables):
            if id(variable) in of_rates:
                rates.append((f"{path}.{place}", _Held(variable, _RATE)))
            else:
                slots.append((f"{path}.{place}", _Held(variable, _SLOT)))
    layers = model_objects.layers(model).values()
    weights = {id(v) for layer in layers for v in own_trainable_variables(layer)}  # frozen, too
    own = {
        id(v)
        for layer in layers
        if isinstance(layer, keras.layers.BatchNormalization)
        for v in layer.non_trainable_variables
        if id(v) not in weights
    }
    of_model = [
        (f".{place}", _Held(v, _WEIGHT if v.trainable or id(v) in weights else _STATE))
        for place, v in enumerate(model.variables)
    ]
    seen: set[int] = accumulated | own
    for name, held in (*rates, *of_model, *slots):
        if id(held.variable) not in seen and _is_common(held.variable):
            seen.add(id(held.variable))
            yield name, held


def _with_inner(optimizer) -> Iterator[keras.optimizers.Optimizer]:
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def _is_common(variable):
    """Whether a variable is the strategy's, and one for all replicas."""
    return (
        isinstance(variable.value, tf.distribute.DistributedValues)
        and variable.synchronization != "on_read"  # as metrics and residuals are
        and not variable.overwrite_with_gradient
    )


def _digests(variable) -> list:
    """Of each local replica's value: the same for the same bits."""
    value = variable.value
    parts = value.distribute_strategy.experimental_local_results(value)
    if variable.shape == () and variable.dtype.startswith("float"):
        return [str(part.numpy()) for part in parts]  # as exact, and people can read it
    with tf.device("CPU"):
        return [
            tf.fingerprint(tf.reshape(part, [1, variable.shape.num_elements()]))
            .numpy()
            .tobytes()
            .hex()
            for part in parts
        ]


def _line(variable, parts: Sequence[Sequence[str]], names: Sequence[str]) -> str:
    """What a variable is where."""
    if variable.shape == () and variable.dtype.startswith("float"):
        values = (f"{', '.join(sorted(set(p)))} ({n})" for p, n in zip(parts, names, strict=True))
        return f"{variable.path}: {', '.join(values)}"
    others = [n for p, n in zip(parts, names, strict=True) if set(p) != {parts[0][0]}]
    return f"{variable.path}: another value on {', '.join(others)} than on {names[0]}"
