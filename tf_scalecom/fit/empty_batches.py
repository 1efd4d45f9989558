"""What a replica without data contributes: nothing, even where it computes NaN.

A worker that runs out of data before the others takes part in their steps with a batch of no rows.
Sums over rows are then zero, as they should be, but means are NaN, and batch normalisation takes
means: its NaN would stay in the worker's moving averages, and come to all replicas with the
gradients. So what is not finite is left out if it comes from a replica whose batch is empty. NaN
from data stays NaN.
"""

import tensorflow as tf

from tf_scalecom.compat.tensorflow_distribute import select_replica


def find_empty(arguments, num_replicas):
    """Finds out which of this process's replicas have a batch without rows.

    Args:
        arguments: nested structure of what a step gets, distributed values included.
        num_replicas: number of replicas of this process.

    Returns:
        A list of bool scalars, one per replica; None if it is known before the step runs that
        none is empty.
    """
    empty = [_has_no_rows(select_replica(replica, arguments)) for replica in range(num_replicas)]
    return None if any(e is None for e in empty) else empty


def _has_no_rows(arguments):
    counts = []
    for leaf in tf.nest.flatten(arguments):
        if isinstance(leaf, tf.RaggedTensor):
            counts.append(leaf.nrows())
        elif isinstance(leaf, tf.SparseTensor):
            counts.append(leaf.dense_shape[0])
        elif isinstance(leaf, tf.Tensor) and leaf.shape.rank:
            if leaf.shape[0]:
                return None
            counts.append(tf.shape(leaf, out_type=tf.int64)[0])
    return tf.reduce_all([tf.equal(count, 0) for count in counts]) if counts else None


def leave_out(value, empty):
    """Replaces by zero what is not finite in a tensor, or in slices, of an empty replica.

    Args:
        value: tensor or `tf.IndexedSlices`.
        empty: bool scalar, whether its replica has an empty batch.
    """
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(leave_out(value.values, empty), value.indices, value.dense_shape)
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_floating:
        return value
    # On the value's own device: TensorFlow packs a reduction by devices.
    with tf.device(value.device):
        return finite_if(empty, lambda: tf.zeros_like(value), value)


def finite_if(empty, otherwise, value):
    """`value`; but of a replica with an empty batch `otherwise()` where it is not finite."""
    # A cond, so that the replicas that have data do not pay for those that have none.
    return tf.cond(empty, lambda: finite_or(otherwise(), value), lambda: value)


def finite_or(otherwise, value):
    """`value` where it is finite, elsewhere `otherwise`."""
    return tf.where(tf.math.is_finite(value), value, otherwise)
