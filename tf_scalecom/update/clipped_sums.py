"""Plain optimizers' sums of the gradients, under this package's collectives.

They, too, clip the sum, as one process does. Keras has each replica clip its own, and then sums:
here the gradients are summed where they are to be clipped, and not again where Keras would.
"""

import weakref

import keras
import tensorflow as tf

from tf_scalecom.reduction.clipping import Clipping
from tf_scalecom.update.route import collectives
from tf_scalecom.update.supported import check_plain
from tf_scalecom.workers.over_replicas import sum_over_replicas

# Of a replica, in the step that it is in: the optimizer whose gradients are summed already.
_summed: weakref.WeakKeyDictionary[tf.distribute.ReplicaContext, keras.optimizers.Optimizer] = (
    weakref.WeakKeyDictionary()
)


def clip_gradients(clip, optimizer, gradients):
    """In place of Keras's own, called in each update: the gradients, summed first, if they clip."""
    context = tf.distribute.get_replica_context()
    if _exchanges(context):
        check_plain(optimizer)
        if Clipping.of(optimizer) is not None:
            gradients = sum_over_replicas(list(gradients))
            _summed[context] = optimizer
    return clip(optimizer, gradients)


def all_reduce(reduce, optimizer, gradients_and_variables):
    """In place of Keras's own: sums gradients, unless they are sums."""
    context = tf.distribute.get_replica_context()
    pairs = list(gradients_and_variables)
    if context is not None and _summed.pop(context, None) is optimizer:
        return pairs
    if not _exchanges(context):
        return reduce(optimizer, pairs)
    sums = iter(sum_over_replicas([gradient for gradient, _ in pairs if gradient is not None]))
    return [(None if gradient is None else next(sums), variable) for gradient, variable in pairs]


def _exchanges(context):
    """Whether a replica's gradients are summed by this package's collectives."""
    return (
        context is not None
        and context.num_replicas_in_sync > 1
        and collectives(context.strategy) is not None
    )
