"""The size of a worker's gradients, taken once in many steps, as it costs a pass over them."""

from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util, resource_variable_ops


class GradientNorm:
    """Measures the gradients of this process once every so many steps, or never.

    Attributes:
        every: measure the next step and then one in this many; None for never.
    """

    def __init__(self):
        self.every: int | None = None
        # Of this process alone, and no state to save.
        with tf.init_scope(), tf.device("CPU:0"):
            self._norm = resource_variable_ops.ResourceVariable(float("nan"), dtype=tf.float32)
            self._next = resource_variable_ops.ResourceVariable(0, dtype=tf.int64)

    def restart(self, every: int) -> bool:
        """Forgets what was measured, and measures the next step.

        Args:
            every: see the attribute.

        Returns:
            Whether steps that were traced before must be traced again to follow.
        """
        changed = every != self.every
        self.every = every
        self._norm.assign(float("nan"))
        self._next.assign(0)
        return changed

    def value(self) -> float:
        """Euclidean norm of the gradients of the last step measured; NaN before the first."""
        return float(self._norm.numpy())

    def measure(self, step, gradients: Callable[[], Sequence[tf.Tensor]]) -> None:
        """Measures a step if its turn has come. Call it in cross-replica context.

        Args:
            step: integer scalar, the number of the step.
            gradients: returns those that count, of any float dtype. If they are not finite, the
                next step is measured in their place.
        """
        if self.every is None:
            return
        if control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
            return  # what XLA compiles cannot write where the host reads
        step = tf.cast(step, tf.int64)

        def measure():
            squares = [2 * tf.nn.l2_loss(tf.cast(g, tf.float32)) for g in gradients()]
            norm = tf.sqrt(tf.add_n([tf.constant(0.0), *squares]))
            finite = tf.math.is_finite(norm)
            self._norm.assign(tf.where(finite, norm, self._norm))
            self._next.assign(tf.where(finite, step + self.every, step))

        tf.cond(step >= self._next, measure, lambda: None)
