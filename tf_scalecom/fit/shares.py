"""The share of a step's rows that a replica has: by it counts what the replica computes.

In a step that Keras makes of its data, every replica computes what one process would, on its own
rows: losses, metrics and logs are means over them. The mean over all rows is the sum over replicas
of each one's mean times its share, rows here / rows of all. Shares differ: a last batch is shared
out as it comes, and some replicas get no row of it. What such a replica computes may be NaN, and is
left out.
"""

import contextlib

import keras
import tensorflow as tf

from tf_scalecom.compat.keras_objects import keeping_added_losses
from tf_scalecom.compat.tensorflow_runtime import on_a_tape
from tf_scalecom.fit.rows import count_rows
from tf_scalecom.workers.over_replicas import sum_over_replicas


class Share:
    """One replica's share of a step; made as the step begins on it, in its context.

    Args:
        model: whose step it is.
        batch: nested structure, what the step gets.
        rows_of_all: int64 scalar; 0 where they are not counted, and all shares are alike.
        num_replicas: how many there are.

    Attributes:
        rows: int64 scalar, of this replica.
        weight: float32 scalar, the share.
        weighed: what has been weighed before its gradient: optimizers, by id.
        of_whole_batch: whether a loss is being computed, of all rows instead of this share.
        is_number: whether the last loss was one number for its rows.
    """

    def __init__(self, model: keras.Model, batch, rows_of_all: tf.Tensor, num_replicas: int):
        self._model = model
        rows = count_rows(batch)
        self.rows = tf.constant(1, tf.int64) if rows is None else rows
        self.weight = tf.where(
            tf.logical_and(rows_of_all > 0, rows is not None),
            tf.cast(self.rows, tf.float32) / tf.cast(tf.maximum(rows_of_all, 1), tf.float32),
            1.0 / num_replicas,
        )
        self.weighed: set[int] = set()
        self.of_whole_batch = self.is_number = False
        self._graph = tf.compat.v1.get_default_graph()

    def is_of_rows(self, value: tf.Tensor) -> bool:
        """Whether a tensor has a row for each of the batch, as far as its shape tells."""
        rows = tf.get_static_value(self.rows)
        return value.shape.rank != 0 and value.shape[0] == (None if rows is None else int(rows))

    def if_any(self, value: tf.Tensor) -> tf.Tensor:
        """A value; 0 of a replica without rows, whatever it has computed."""
        return tf.where(self.rows > 0, value, tf.zeros_like(value))

    def weigh(self, value: tf.Tensor) -> tf.Tensor:
        """This replica's part in a mean over the rows of all; the parts are to be summed."""
        return self.if_any(value * tf.cast(self.weight, value.dtype))

    def undo(self, value: tf.Tensor) -> tf.Tensor:
        """What `weigh` makes `value` of."""
        return tf.math.divide_no_nan(value, tf.cast(self.weight, value.dtype))

    def of_all(self, value: tf.Tensor) -> tf.Tensor:
        """A number that all replicas have alike, with gradients that, weighed, are whole.

        Not by a `tf.custom_gradient`, which keeps the graph, see `workers.over_replicas`.
        """
        held = tf.stop_gradient(value)
        finite = held + self.undo(value - held)
        return tf.where(tf.math.is_finite(value), finite, self.undo(value))

    def can_speak(self) -> bool:
        """Whether replicas may exchange something here: not in a condition, say, of the step."""
        return tf.compat.v1.get_default_graph() is self._graph

    def speaking(self) -> contextlib.AbstractContextManager:
        """Inside, in the middle of the model's losses, replicas exchange something.

        Those of one process take turns there.
        """
        return keeping_added_losses(self._model)

    def over_all(self, divisor: tf.Tensor) -> tf.Tensor:
        """By what to multiply a replica's sum / divisor, so that all, weighed, make that of all.

        For a mean that is not over rows but over what counts in them, such as what is not masked:
        the divisors of all replicas are summed, in a collective of one number. Where a step lets no
        replica speak to others, inside a condition say, each replica's mean is weighed as it is.

        Args:
            divisor: floating scalar.
        """
        if not self.can_speak():
            return tf.ones_like(divisor)
        with self.speaking():
            if on_a_tape([divisor]):  # of weights that depend on what is trained
                of_all = tf.distribute.get_replica_context().all_reduce("SUM", divisor)
            else:
                (of_all,) = sum_over_replicas([divisor])
        return tf.math.divide_no_nan(self.undo(divisor), of_all)


def here() -> Share | None:
    """That of the current replica; None outside of a step that Keras makes, or with one replica."""
    share_here = getattr(tf.distribute.get_strategy().extended, "share_here", None)
    return share_here() if share_here else None
