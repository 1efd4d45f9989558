"""Sums and rows of all replicas, for one of them; no gradient passes.

`ReplicaContext.all_reduce` and `all_gather`, through which gradients pass, keep the graph of each
step that is traced with them for as long as the process lives.
"""

from collections.abc import Sequence

import tensorflow as tf


def sum_over_replicas(values: Sequence[tf.Tensor | tf.IndexedSlices]) -> list:
    """Sums over all replicas, in one collective; call it in replica context."""
    return _merge(_sum, *values) if values else []


def gather_over_replicas(rows: tf.Tensor) -> tf.Tensor:
    """The rows of all replicas, in their order; call it in replica context."""
    return _merge(_gather, rows)


def _merge(function, *values):
    # One replica may run the merged call in its own thread, where a tape would look on.
    values = tf.nest.map_structure(tf.stop_gradient, values, expand_composites=True)
    return tf.distribute.get_replica_context().merge_call(function, args=values)


def _sum(strategy, *values):
    return strategy.extended.batch_reduce_to(
        tf.distribute.ReduceOp.SUM, [(value, value) for value in values]
    )


def _gather(strategy, rows):
    return strategy.extended.gather_to_all(rows)
