"""Says so when one step after the other is skipped: nothing is learned then."""

import tensorflow as tf
from absl import logging

from tf_scalecom.compat.tensorflow_runtime import ResourceVariable, compiled_by_xla

STEPS_IN_A_ROW = 25


class SkipWarning:
    """Warns in the log after every 25 skipped steps in a row.

    It is told of skipped steps alone, so that a step that is not skipped costs nothing: a row ends
    where the next step to be skipped is not the one that would continue it.

    Args:
        advice: what the warning says to do.
    """

    def __init__(self, advice: str):
        self._advice = advice
        # Of this process alone, and no state to save: all workers skip the same steps.
        with tf.init_scope(), tf.device("CPU:0"):
            self._count = ResourceVariable(0, dtype=tf.int64)
            self._next = ResourceVariable(-1, dtype=tf.int64)

    def count(self, step, next_step) -> tf.Tensor | None:
        """Counts a skipped step. Call it where the step is skipped, in cross-replica context.

        Args:
            step: integer scalar, the number of the step.
            next_step: integer scalar, the number of the step to come.

        Returns:
            int64 scalar, the steps skipped in a row, this one included; None where XLA compiles,
            which can neither count on the host nor log.
        """
        if compiled_by_xla():
            return None
        continues = tf.equal(tf.cast(step, tf.int64), self._next)
        count = tf.where(continues, self._count + 1, 1)
        self._count.assign(count)
        self._next.assign(tf.cast(next_step, tf.int64))
        tf.cond(
            tf.equal(count % STEPS_IN_A_ROW, 0),
            lambda: tf.numpy_function(self._warn, [count], []),
            tf.no_op,
        )
        return count

    def _warn(self, count):
        logging.warning("tf_scalecom: %d steps in a row were skipped. %s", count, self._advice)
