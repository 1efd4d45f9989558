"""Losses that are one number for a batch: each replica computes them of the rows of all.

The Dice coefficient, a contrastive loss among the rows of a batch or a sum of a user's own say
nothing of the batch if each replica computes them of its rows alone. So replicas exchange what such
a loss is made of, and each computes the same number, from which gradients flow to its own rows.
"""

import keras
import tensorflow as tf
from absl import logging

from tf_scalecom.fit.shares import Share

_said: set[str] = set()


def gather(structure, share: Share):
    """The rows of all replicas, in their order; gradients flow to this replica's own.

    A collective call, in replica context.

    Args:
        structure: nested tensors, each with a row for each of this replica's, or None.
        share: this replica's.
    """
    context = tf.distribute.get_replica_context()
    rows = context.all_gather(share.rows[tf.newaxis], axis=0)
    first = tf.reduce_sum(rows[: context.replica_id_in_sync_group])

    def gather_one(own):
        if own is None:
            return None
        own = tf.identity(own)  # on this replica's device, as TensorFlow asks where to gather
        every = context.all_gather(own, axis=0)

        @tf.custom_gradient
        def with_own_gradient(_):
            return every, lambda gradient: gradient[first : first + share.rows]

        return with_own_gradient(own)

    return keras.tree.map_structure(gather_one, structure)


def say(loss: keras.losses.Loss, predictions) -> None:
    """Says once in the log what such a loss costs."""
    if loss.name not in _said:
        _said.add(loss.name)
        elements = [t.shape[1:].num_elements() or 1 for t in keras.tree.flatten(predictions)]
        logging.warning(
            "tf_scalecom: the loss %s is one number for a batch. To compute it of the whole batch, "
            "as in one process, replicas exchange targets and predictions in each step, %d "
            "predictions for each row. A loss that gives a number for each row, for Keras to take "
            "the mean, needs no exchange.",
            loss.name,
            sum(elements),
        )
