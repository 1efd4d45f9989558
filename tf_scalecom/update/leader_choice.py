"""How well the leader's choice suits the others."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_scalecom.compat.tensorflow_runtime import compiled_by_xla
from tf_scalecom.update.measured_steps import MeasuredSteps
from tf_scalecom.wire.layout import Layout, TensorLayout

# Chunks of a variable that are looked at.
_SAMPLE = 64


class LeaderChoice(MeasuredSteps):
    """Of the energy that this replica's own choice would have caught, the share that is sent.

    In a step that another replica leads, of a sample of the chunks of its residual + gradient p:
    sum of p^2 where it is sent, by the same where p is largest. It needs nothing from others.
    """

    def caught(self, num_replicas: int) -> float:
        """What of the sum over n replicas is caught, by what the best choice would catch.

        An estimate, for replicas whose p are independent and of one size: with this replica's share
        r, (1 + (n - 1) r) / n. NaN before the first measurement.
        """
        return (1 + (num_replicas - 1) * self.value()) / num_replicas if num_replicas > 1 else 1.0

    def before(
        self,
        step,
        is_led_by_others: Callable[[], tf.Tensor],
        gradients: Callable[[], Sequence[tf.Tensor]],
        residuals: Sequence[tf.Variable],
        plan: Layout,
    ) -> list[tf.Tensor]:
        """What `after` needs of a step that has not been exchanged yet.

        Args:
            step: integer scalar, its number.
            is_led_by_others: returns a bool scalar.
            gradients: returns those of the compressed variables.
            residuals: likewise.
            plan: of all variables.
        """
        tensors = _sampled(plan)
        if not self.takes_part or not tensors or compiled_by_xla():
            return []

        def sample():
            parts = dict(
                zip(plan.compressed, zip(gradients(), residuals, strict=True), strict=True)
            )
            return [
                True,
                *(tf.add_n([_sample(part, t) for part in parts[i]]) for i, t in tensors.items()),
            ]

        def nothing():
            return [False, *(tf.zeros([0, tensor.chunk_size]) for tensor in tensors.values())]

        return list(tf.cond(is_led_by_others() & self.is_due(step), sample, nothing))

    def after(self, step, before: Sequence[tf.Tensor], sums: Sequence, plan: Layout) -> None:
        """Measures it.

        Args:
            step, plan: as there.
            before: what `before` returned.
            sums: of all variables, 0 where nothing is sent.
        """
        if not before:
            return
        is_measured, *samples = before

        def measure():
            sent = most = tf.constant(0.0)
            for sample, (i, tensor) in zip(samples, _sampled(plan).items(), strict=True):
                squares = tf.square(sample)
                is_sent = tf.cast(_sample(sums[i], tensor) != 0, tf.float32)
                sent += tf.reduce_sum(squares * is_sent)
                most += tf.reduce_sum(tf.math.top_k(squares, tensor.chunk_keep).values)
            self.keep(step, sent / most)

        tf.cond(is_measured, measure, lambda: None)


def _sampled(plan) -> dict[int, TensorLayout]:
    """Those that are selected chunk by chunk, by position."""
    tensors = {i: plan.tensors[i] for i in plan.compressed}
    return {i: t for i, t in tensors.items() if t.selection == "chunk"}


def _sample(values, tensor: TensorLayout) -> tf.Tensor:
    """float32 [chunks, elements] of some chunks, evenly spread."""
    count, size = tensor.full_chunks, tensor.chunk_size
    chunks = tf.reshape(tf.reshape(values, [-1])[: count * size], [count, size])
    spread = np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64)
    return tf.cast(tf.gather(chunks, spread), tf.float32)
