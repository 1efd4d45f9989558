"""What a step returns, `train_step`'s logs, as one value for all replicas.

* A number is the mean over the rows of all replicas: the loss of a batch is that of the whole one.
* What has a row for each of the batch comes with the rows of all replicas.
* All else, such as strings, is this worker's own.

A metric's result is a mean like that while an epoch runs. It ends with the result over all that the
replicas have seen, under the name that it has in the logs, as in one process.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.fit.shares import Share
from tf_scalecom.workers.over_replicas import gather_over_replicas, sum_over_replicas


class MetricResult(NamedTuple):
    """Where a value of the logs comes from.

    Attributes:
        metric: whose `result()` it is.
        key: under which it is in that, if that is a dict.
    """

    metric: keras.metrics.Metric
    key: str | None

    def of_all(self):
        """The result over what all replicas have seen; call it outside of a step."""
        result = self.metric.result()
        return result if self.key is None else result[self.key]


@contextlib.contextmanager
def noting_results(model: keras.Model) -> Iterator[dict[int, MetricResult]]:
    """Inside, results of a model's metrics are noted, by the id of the value."""
    noted: dict[int, MetricResult] = {}
    metrics = list(model.metrics)

    def result_of(metric):
        def result():
            value = type(metric).result(metric)
            parts = value.items() if isinstance(value, dict) else [(None, value)]
            noted.update({id(part): MetricResult(metric, key) for key, part in parts})
            kept.append(value)
            return value

        return result

    kept: list[Any] = []  # so that no id is that of another value
    for metric in metrics:
        object.__setattr__(metric, "result", result_of(metric))  # past Keras's tracking
    try:
        yield noted
    finally:
        for metric in metrics:
            object.__delattr__(metric, "result")


def to_tensor(leaf):
    """The value of a variable, as every replica may have its own; a tensor for a number."""
    if isinstance(leaf, keras.Variable):
        leaf = leaf.value
    if isinstance(leaf, (tf.Variable, np.ndarray, np.generic, int, float, str)):
        return tf.convert_to_tensor(leaf)
    return leaf


def join(logs, share: Share):
    """The same structure with values of all replicas; a collective call, in replica context."""
    leaves = [to_tensor(leaf) for leaf in keras.tree.flatten(logs)]
    means = {i: v for i, v in enumerate(leaves) if _is_number(v) and not _has_rows(v, share)}
    if means:
        sums = sum_over_replicas([share.weigh(_inexact(value)) for value in means.values()])
        for i, total in zip(means, sums, strict=True):
            leaves[i] = _as_before(total, means[i])
    for i, value in enumerate(leaves):
        if i not in means and _has_rows(value, share):
            leaves[i] = gather_over_replicas(value)
    return keras.tree.pack_sequence_as(logs, leaves)


def _is_number(value):
    return isinstance(value, tf.Tensor) and (
        value.dtype.is_floating or value.dtype.is_complex or value.dtype.is_integer
    )


def _has_rows(value, share):
    return isinstance(value, tf.Tensor) and value.shape.rank != 0 and share.is_of_rows(value)


def _inexact(value):
    return tf.cast(value, tf.float64) if value.dtype.is_integer else value


def _as_before(total, value):
    return tf.cast(tf.round(total), value.dtype) if value.dtype.is_integer else total
