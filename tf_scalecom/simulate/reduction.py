"""What a method of reduction is, and what all of them share."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from tf_scalecom.wire.layout import Layout


class Reduced(NamedTuple):
    """Result of one reduction.

    Attributes:
        gradients: [variable], the sum over all learners.
        sent: [learner][variable]: not zero where that learner's element took part.
        finite: bool scalar. Where false gradients are not to be used.
    """

    gradients: list[tf.Tensor]
    sent: list[list[tf.Tensor]]
    finite: tf.Tensor | bool = True


class Method(Protocol):
    """A reduction with its memory.

    Attributes:
        compressed: positions of the variables it compresses.
        residuals: [learner][compressed variable], float32 variables.
    """

    compressed: tuple[int, ...]
    residuals: list[list[tf.Variable]]

    def reduce(self, gradients, layout: Layout, step: tf.Tensor) -> Reduced:
        """Sums gradients [learner][variable] under a plan, and updates the residuals.

        Callable inside a `tf.function`; `step` is an int64 scalar.
        """

    def bytes_sent(self, layout: Layout) -> float:
        """Payload one learner transmits in a step under a plan, averaged over a leader cycle."""

    def variables(self) -> dict[str, tf.Variable]:
        """All memory by name."""


def zero_residuals(learners: int, shapes: Sequence[Sequence[int]]) -> list[list[tf.Variable]]:
    """Fresh residuals, [learner][compressed variable]."""
    return [[tf.Variable(tf.zeros(shape)) for shape in shapes] for _ in range(learners)]


def named_residuals(residuals: Sequence[Sequence[tf.Variable]]) -> dict[str, tf.Variable]:
    """Residuals by name, for the state of a run."""
    return {
        f"residual/{learner}/{place}": variable
        for learner, own in enumerate(residuals)
        for place, variable in enumerate(own)
    }


def compensated_sum(gradients, residuals, compressed: Sequence[int]) -> list[tf.Tensor]:
    """sum_i (g_i + m_i) of each compressed variable.

    Args:
        gradients: [learner][variable].
        residuals: [learner][compressed variable].
        compressed: positions of the compressed variables.
    """
    return [
        tf.add_n([own[position] for own in gradients])
        + tf.add_n([own[place].value() for own in residuals])
        for place, position in enumerate(compressed)
    ]
