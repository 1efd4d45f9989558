"""The size of a worker's gradients, taken once in many steps, as it costs a pass over them."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_scalecom.compat.tensorflow_runtime import ResourceVariable, compiled_by_xla

_NEVER = tf.int64.max  # no step has this number


class GradientNorm:
    """Measures the gradients of this process once every so many steps, while it is asked to.

    Steps that are traced before the first `start` hold nothing of it. Later ones look at a number
    to know whether their turn has come, so that starting and stopping needs no other trace.
    """

    def __init__(self):
        self._takes_part = False
        # Of this process alone, and no state to save.
        with tf.init_scope(), tf.device("CPU:0"):
            self._norm = ResourceVariable(float("nan"), dtype=tf.float32)
            self._every = ResourceVariable(1, dtype=tf.int64)
            self._next = ResourceVariable(_NEVER, dtype=tf.int64)

    def start(self, every: int) -> bool:
        """Forgets what was measured, measures the next step, and then one in `every`.

        Returns:
            Whether steps that were traced before must be traced again to follow.
        """
        is_first, self._takes_part = not self._takes_part, True
        self._norm.assign(float("nan"))
        self._every.assign(every)
        self._next.assign(0)
        return is_first

    def stop(self) -> None:
        """Measures no more; the last value stays."""
        self._next.assign(_NEVER)

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
        if not self._takes_part:
            return
        if compiled_by_xla():
            return  # what XLA compiles cannot write where the host reads
        step = tf.cast(step, tf.int64)

        def measure():
            squares = [2 * tf.nn.l2_loss(tf.cast(g, tf.float32)) for g in gradients()]
            norm = tf.sqrt(tf.add_n([tf.constant(0.0), *squares]))
            finite = tf.math.is_finite(norm)
            self._norm.assign(tf.where(finite, norm, self._norm))
            self._next.assign(tf.where(finite, step + self._every, step))

        tf.cond(step >= self._next, measure, lambda: None)
