"""The size of a worker's gradients."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_scalecom.compat.tensorflow_runtime import compiled_by_xla
from tf_scalecom.update.measured_steps import MeasuredSteps


class GradientNorm(MeasuredSteps):
    """Their Euclidean norm."""

    def measure(self, step, gradients: Callable[[], Sequence[tf.Tensor]]) -> None:
        """Measures a step if its turn has come. Call it in cross-replica context.

        Args:
            step: integer scalar, the number of the step.
            gradients: returns those that count, of any float dtype. If they are not finite, the
                next step is measured in their place.
        """
        if not self.takes_part or compiled_by_xla():  # XLA cannot write where the host reads
            return

        def measure():
            squares = [2 * tf.nn.l2_loss(tf.cast(g, tf.float32)) for g in gradients()]
            self.keep(step, tf.sqrt(tf.add_n([tf.constant(0.0), *squares])))

        tf.cond(self.is_due(step), measure, lambda: None)
