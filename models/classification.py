"""What the tasks that classify have in common, for `python -m tf_scalecom simulate`."""

from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf


def mean_loss(labels, logits) -> tf.Tensor:
    """The mean cross-entropy, a float32 scalar.

    Args:
        labels: integers of any shape.
        logits: float32 of the labels' shape and one axis more, the classes.
    """
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def evaluate(
    model: keras.Model, batches: Iterable[np.ndarray], labels: np.ndarray
) -> tuple[float, float]:
    """Share of the labels that are told right, and the mean loss.

    Args:
        model: gives the logits of a batch.
        batches: the model's inputs, as many in all as there are labels, in their order.
        labels: int32.
    """
    forward = tf.function(lambda batch: model(batch, training=False), autograph=False)
    logits = np.concatenate([forward(batch).numpy() for batch in batches])
    accuracy = np.mean(logits.argmax(axis=-1) == labels)
    return float(accuracy), float(mean_loss(labels, logits))
