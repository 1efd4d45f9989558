"""What can be wrong when Keras builds a model of the strategy for its first batch."""

import weakref

import keras
import tensorflow as tf
from absl import logging

_STEPS = ("train_step", "test_step")

# Models that have been looked at: their inputs may have sizes that Keras took from data since.
_seen: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def prepare_to_build(model: keras.Model, batch, strategy: tf.distribute.Strategy) -> None:
    """Looks at a model that Keras is about to build.

    Args:
        model: the model, made in the scope of `strategy`.
        batch: nested structure of one replica's share of a batch.
        strategy: the strategy.
    """
    if any(getattr(type(model), step) is not getattr(keras.Model, step) for step in _STEPS):
        _defer_if_impossible(model)
    if strategy.num_replicas_in_sync > 1 and model not in _seen:
        _seen.add(model)
        if model.built:
            _say_batch_size(model, batch)


def _defer_if_impossible(model):
    """Where calling a model with steps of its own fails, they build it, as without a strategy.

    Such a model need have no `call()`, nor one that takes what `fit` is given.
    """
    build = model._symbolic_build

    def attempt(**batch):
        object.__delattr__(model, "_symbolic_build")
        try:
            build(**batch)
        except Exception as error:  # whatever the user's `call()` raises
            logging.info("tf_scalecom: %s is built by its first step: %s", model.name, error)

    # Past Keras's attribute tracking, which has no business with it. Keras calls it next.
    object.__setattr__(model, "_symbolic_build", attempt)


def _say_batch_size(model, batch):
    fixed = {tensor.shape[0] for tensor in getattr(model, "inputs", None) or ()} - {None}
    # Of `train_on_batch` they may be arrays, numbers or nothing.
    shapes = [tuple(getattr(value, "shape", ())) for value in tf.nest.flatten(batch)]
    shares = {shape[0] for shape in shapes if shape} - {None}
    if fixed and shares and not fixed & shares:
        logging.warning(
            "tf_scalecom: expected a model for any batch size, or for a replica's share of the "
            "batch, %s rows; received one with an Input for %s. If a layer relies on it, as "
            "stateful ones do, write the share: Input(batch_size=%s).",
            *map(_numbers, (shares, fixed, shares)),
        )


def _numbers(values):
    return " or ".join(map(str, sorted(values)))
