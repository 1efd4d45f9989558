"""Each replica draws numbers of its own from a seed that all share: dropout masks, noise, images.

A layer's seed generator starts alike on all replicas and counts alike, so all would draw the same
mask for their rows, and a batch would see fewer masks than in one process. So the replica's number
is folded into the seed that a step draws with. The generator's state knows nothing of it: it stays
the same on all replicas and in their backups, and what is drawn is repeated from seed and state.

The first replica draws what one process would. Its values are also those with which variables
start, so that these start as in one process wherever they are made. Outside of a step, as in the
functions of a dataset, nobody is a replica and nothing is folded.
"""

from collections.abc import Callable

import keras
import tensorflow as tf


def next_seed(advance: Callable, generator: keras.random.SeedGenerator, *args, **kwargs):
    """The next seed of a generator, for this replica.

    Args:
        advance: Keras's `SeedGenerator.next`, which is called with all of the rest.
    """
    seed = advance(generator, *args, **kwargs)
    context = _replica_context()
    replica = tf.get_static_value(context.replica_id_in_sync_group) if context else 0
    return tf.random.fold_in(seed, tf.cast(replica, seed.dtype)) if replica else seed


def global_generator(find: Callable) -> keras.random.SeedGenerator:
    """The generator for draws without a seed: in a step, that of the thread which runs the step.

    Args:
        find: Keras's function, which makes one if its thread has none.
    """
    context = _replica_context()
    return context.merge_call(lambda strategy: _found(find, strategy)) if context else find()


def _found(find, strategy):
    with tf.init_scope(), strategy.scope():
        return find()


def _replica_context() -> tf.distribute.ReplicaContext | None:
    """That of a step of this package's strategy, if this is in one."""
    context = tf.distribute.get_replica_context()
    return context if context and hasattr(context.strategy.extended, "workers") else None
