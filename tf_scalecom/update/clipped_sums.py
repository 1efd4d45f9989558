"""Plain optimizers, too, clip the sum of the gradients, as one process does.

Keras has each replica clip its own, and then sums. Under this package's collectives the gradients
are summed where they are to be clipped, and not again where Keras would.
"""

import weakref

import keras
import tensorflow as tf

from tf_scalecom.reduction.clipping import Clipping
from tf_scalecom.update.route import collectives

# Of a replica, in the step that it is in: the optimizer whose gradients are summed already.
_summed: weakref.WeakKeyDictionary[tf.distribute.ReplicaContext, keras.optimizers.Optimizer] = (
    weakref.WeakKeyDictionary()
)


def clip_gradients(clip, optimizer, gradients):
    """In place of Keras's own: the gradients, summed if they are to be clipped, and clipped."""
    context = tf.distribute.get_replica_context()
    if (
        context is not None
        and context.num_replicas_in_sync > 1
        and collectives(context.strategy) is not None
        and Clipping.of(optimizer) is not None
    ):
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients))
        _summed[context] = optimizer
    return clip(optimizer, gradients)


def all_reduce(reduce, optimizer, gradients_and_variables):
    """In place of Keras's own: sums gradients, unless they are sums."""
    context = tf.distribute.get_replica_context()
    if context is not None and _summed.pop(context, None) is optimizer:
        return list(gradients_and_variables)
    return reduce(optimizer, gradients_and_variables)
