"""What can be wrong when Keras builds a model of the strategy for its first batch."""

import weakref
from collections.abc import Callable

import keras
import tensorflow as tf
from absl import logging

_STEPS = ("train_step", "test_step")

# Models that have been looked at: their inputs may have sizes that Keras took from data since.
_seen: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def read(iterator, strategy: tf.distribute.Strategy):
    """A batch of the shapes of this worker's first one, of at least one row; None without data.

    Args:
        iterator: Keras's, over the data.
        strategy: the strategy that its batches belong to.
    """
    for _, _, batches in iterator:
        batch = next(batches)
        values = keras.tree.flatten(batch)
        if not all(isinstance(value, tf.distribute.DistributedValues) for value in values):
            return batch
        return tf.nest.map_structure(lambda value: _example_of(value, strategy), batch)
    return None


def _example_of(value, strategy):
    value = strategy.experimental_local_results(value)[0]
    if isinstance(value, tf.Tensor) and value.shape.rank and value.shape[0] == 0:
        return tf.zeros([1, *value.shape[1:]], value.dtype)
    return value


def look_at(model: keras.Model, batch, strategy: tf.distribute.Strategy) -> None:
    """Says in the log if a model that is about to be built does not fit to a replica's share.

    Args:
        model: the model, made in the scope of `strategy`.
        batch: nested structure of one replica's share of a batch.
        strategy: the strategy.
    """
    if strategy.num_replicas_in_sync > 1 and model not in _seen:
        _seen.add(model)
        if model.built:
            _say_batch_size(model, batch)


def build_if_possible(model: keras.Model, build: Callable[[], None]) -> None:
    """Builds a model; one with steps of its own is left to them where that fails.

    As without a strategy: such a model need have no `call()`, nor one that takes what `fit` gives.
    """
    if all(getattr(type(model), step) is getattr(keras.Model, step) for step in _STEPS):
        build()
        return
    try:
        build()
    except Exception as error:  # whatever the user's `call()` raises
        logging.info("tf_scalecom: %s is built by its first step: %s", model.name, error)


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
