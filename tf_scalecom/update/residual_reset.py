"""Keeps a residual from skipping one step after the other.

A step is skipped where residual + gradient is not finite, and the residual then stands. One that is
not finite itself, as from a damaged file, or so large that it overflows with every gradient, would
have all steps skipped.
"""

from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from tf_scalecom.compat.tensorflow_runtime import ResourceVariable

# Half the distance between the two largest float32 numbers. Together with less than this no finite
# gradient overflows.
LARGE = 2.0**103


class ResidualReset:
    """Sets elements of residuals to 0, counts them, and says so once in the log.

    Those that are not finite in any skipped step, and those of `LARGE` magnitude from the second
    of a row on. A step that is not skipped costs nothing.
    """

    def __init__(self):
        self._is_said = False
        # Of this process alone, and no state to save.
        with tf.init_scope(), tf.device("CPU:0"):
            self._count = ResourceVariable(0, dtype=tf.int64)

    @property
    def count(self) -> int:
        """Elements set to 0 since the process began, in all its residuals together."""
        return int(self._count.numpy())

    def reset(self, residuals: Sequence[tf.Variable], skipped_in_a_row: tf.Tensor | None) -> None:
        """Looks through residuals. Call it where a step is skipped, in cross-replica context.

        Args:
            residuals: float32 variables, of all replicas of this process.
            skipped_in_a_row: integer scalar, this step included. None if that is not known, as
                where XLA compiles: then every skip is taken for one of a row, and none is counted.
        """
        large = LARGE
        if skipped_in_a_row is not None:
            large = tf.where(skipped_in_a_row > 1, LARGE, float("inf"))
        counts = []
        for residual in residuals:
            value = tf.convert_to_tensor(residual)
            kept = tf.abs(value) < large  # not so for NaN, nor for infinity
            residual.assign(tf.where(kept, value, tf.zeros_like(value)))
            counts.append(tf.math.count_nonzero(tf.logical_not(kept)))
        if skipped_in_a_row is not None and counts:
            count = tf.add_n(counts)
            self._count.assign_add(count)
            tf.cond(count > 0, lambda: tf.numpy_function(self._say, [count], []), tf.no_op)

    def _say(self, count):
        if self._is_said:
            return
        self._is_said = True
        logging.warning(
            "tf_scalecom: %d elements of this worker's residuals were set to 0: they were not "
            "finite, or so large that step after step was skipped for them. What they held is lost "
            "and training goes on. Look for infinities in a file that was loaded, and for huge "
            "gradients. Later ones are counted only, in ScaleComOptimizer.reset_elements.",
            count,
        )
