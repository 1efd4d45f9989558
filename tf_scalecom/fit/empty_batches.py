"""What a replica without data contributes: nothing, even where it computes NaN.

A worker that runs out of data before the others takes part in their steps with a batch of no rows.
Sums over rows are then zero, as they should be, but means are NaN, and batch normalisation takes
means: its NaN would stay in the worker's moving averages, and come to all replicas with the
gradients. So what is not finite is left out if it comes from a replica whose batch is empty. NaN
from data stays NaN.
"""

import collections

import tensorflow as tf

from tf_scalecom.compat.tensorflow_distribute import select_replica

# Tensors of so many elements are looked at on empty replicas alone: all of them in one condition,
# each of which takes long to trace, but each as soon as it is there. Smaller ones are on all.
_LARGE = 1 << 12


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


def leave_out(values, empty):
    """Replaces by zero what is not finite in tensors, or in slices, of an empty replica.

    Args:
        values: list of tensors or `tf.IndexedSlices`, of one replica.
        empty: bool scalar, whether its replica has an empty batch.

    Returns:
        The same list.
    """
    tensors = [
        v.values if isinstance(v, tf.IndexedSlices) else tf.convert_to_tensor(v) for v in values
    ]
    kept, large = list(tensors), collections.defaultdict(list)
    for place, tensor in enumerate(tensors):
        # On the tensor's own device: TensorFlow packs a reduction by devices.
        if not tensor.dtype.is_floating:
            continue
        if tensor.shape.num_elements() in range(_LARGE):
            with tf.device(tensor.device):
                kept[place] = finite_or(tf.zeros_like(tensor), tensor, where=empty)
        else:
            large[tensor.device].append(place)
    for device, places in large.items():
        of_device = [tensors[place] for place in places]
        with tf.device(device):
            cleaned = tf.cond(
                empty,
                lambda of_device=of_device: [finite_or(tf.zeros_like(t), t) for t in of_device],
                lambda of_device=of_device: of_device,
            )
        for place, tensor in zip(places, tf.nest.flatten(cleaned), strict=True):
            kept[place] = tensor
    return [
        tf.IndexedSlices(tensor, v.indices, v.dense_shape)
        if isinstance(v, tf.IndexedSlices)
        else tensor
        for tensor, v in zip(kept, values, strict=True)
    ]


def finite_or(otherwise, value, where=True):
    """`value` where it is finite, elsewhere `otherwise`; if not `where`, `value` as it is."""
    replaced = tf.logical_and(where, tf.logical_not(tf.math.is_finite(value)))
    return tf.where(replaced, otherwise, value)
