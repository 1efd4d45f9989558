"""What is measured in one step of many, while somebody asks for it, as it costs time."""

import tensorflow as tf

from tf_scalecom.compat.tensorflow_runtime import ResourceVariable

_NEVER = tf.int64.max  # no step has this number


class MeasuredSteps:
    """A value of this process, and the step in which it is measured next.

    Steps that are traced before the first `start` hold nothing of it. Later ones look at a number
    to know whether their turn has come, so that starting and stopping needs no other trace.

    Attributes:
        takes_part: whether it was ever started.
    """

    def __init__(self):
        self.takes_part = False
        # Of this process alone, and no state to save.
        with tf.init_scope(), tf.device("CPU:0"):
            self._value = ResourceVariable(float("nan"), dtype=tf.float32)
            self._every = ResourceVariable(1, dtype=tf.int64)
            self._next = ResourceVariable(_NEVER, dtype=tf.int64)

    def start(self, every: int) -> bool:
        """Forgets what was measured, measures the next step, and then one in `every`.

        Returns:
            Whether steps that were traced before must be traced again to follow.
        """
        is_first, self.takes_part = not self.takes_part, True
        self._value.assign(float("nan"))
        self._every.assign(every)
        self._next.assign(0)
        return is_first

    def stop(self) -> None:
        """Measures no more; the last value stays."""
        self._next.assign(_NEVER)

    def value(self) -> float:
        """The last value measured; NaN before the first."""
        return float(self._value.numpy())

    def is_due(self, step) -> tf.Tensor:
        """Whether a step's turn has come."""
        return tf.cast(step, tf.int64) >= self._next

    def keep(self, step, value) -> None:
        """Keeps a value of this step; one that is not finite is measured again in the next."""
        step = tf.cast(step, tf.int64)
        finite = tf.math.is_finite(value)
        self._value.assign(tf.where(finite, value, self._value))
        self._next.assign(tf.where(finite, step + self._every, step))
