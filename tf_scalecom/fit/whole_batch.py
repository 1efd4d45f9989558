"""Losses that are one number for a batch: each replica computes them of the rows of all.

The Dice coefficient, a contrastive loss among the rows of a batch or a sum of a user's own say
nothing of the batch if each replica computes them of its rows alone. So replicas exchange what such
a loss is made of, and each computes the same number, from which gradients flow to its own rows.
"""

import keras
import tensorflow as tf
from absl import logging

from tf_scalecom.fit.shares import Share
from tf_scalecom.workers.over_replicas import gather_over_replicas

_said: set[str] = set()


def gather(structure, share: Share):
    """The rows of all replicas, in their order; gradients flow to this replica's own.

    A collective call, in replica context.

    Args:
        structure: nested tensors, each with a row for each of this replica's, ragged ones too, or
            None, or a number that all replicas have alike, such as the weight of a loss.
        share: this replica's.
    """
    first = _count_before(share.rows)
    leaves = keras.tree.flatten(structure)
    by_dtype: dict[tf.DType, list[int]] = {}
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, tf.RaggedTensor):
            leaves[place] = _gather_ragged(leaf)
        elif leaf is not None:
            leaves[place] = tensor = tf.convert_to_tensor(leaf)
            if tensor.shape.rank != 0:
                by_dtype.setdefault(tensor.dtype, []).append(place)
    for places in by_dtype.values():  # together, as each exchange takes its time
        of_dtype = [leaves[place] for place in places]
        flat = [
            tf.reshape(leaf, [tf.cast(share.rows, tf.int32), _row_size(leaf)]) for leaf in of_dtype
        ]
        every = gather_over_replicas(tf.concat(flat, axis=1))
        parts = tf.split(every, [_row_size(leaf) for leaf in of_dtype], axis=1)
        for place, leaf, part in zip(places, of_dtype, parts, strict=True):
            shaped = tf.reshape(part, tf.concat([[-1], tf.shape(leaf)[1:]], axis=0))
            own_in_place = _with_own(leaf, shaped, first)
            leaves[place] = tf.ensure_shape(own_in_place, [None, *leaf.shape[1:]])
    return keras.tree.pack_sequence_as(structure, leaves)


def _row_size(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(tf.shape(tensor)[1:])


def _gather_ragged(own: tf.RaggedTensor) -> tf.RaggedTensor:
    lengths = [gather_over_replicas(level) for level in own.nested_row_lengths()]
    values = own.flat_values
    if values.shape[1:].is_fully_defined():  # which TensorFlow's batch without rows has lost
        values = tf.reshape(values, [-1, *values.shape[1:]])
    first = _count_before(tf.shape(values, out_type=tf.int64)[0])
    return tf.RaggedTensor.from_nested_row_lengths(
        _with_own(values, gather_over_replicas(values), first), lengths, validate=False
    )


def _count_before(count: tf.Tensor) -> tf.Tensor:
    """How many the replicas before this one have, if this one has `count`: both int64 scalars."""
    counts = gather_over_replicas(count[tf.newaxis])
    return tf.reduce_sum(counts[: tf.distribute.get_replica_context().replica_id_in_sync_group])


def _with_own(own, every, first):
    """The rows of all, of which this replica's, from row `first` on, are those it computed."""
    rows = tf.shape(own, out_type=tf.int64)[0]
    return tf.concat([every[:first], own, every[first + rows :]], axis=0)


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
