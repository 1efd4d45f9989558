"""What the paper says about the learners' residuals and the leader's choice, measured.

All of it is about x = sum_i (m_i + g_i), the compensated gradient that a step starts from, over
the compressed variables.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.ops.words import flat_indices
from tf_scalecom.wire.layout import Layout


def compensated_sum(
    gradients: Sequence[Sequence[tf.Tensor]],
    residuals: Sequence[Sequence[tf.Variable]],
    compressed: Sequence[int],
) -> list[tf.Tensor]:
    """x of each compressed variable.

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


def cosine_distance(residuals: Sequence[Sequence[tf.Variable]]) -> float:
    """1 - cos(m_i, m_j), the mean over all pairs of different learners.

    By the sum s of the n vectors m_i / |m_i|: the mean cosine is (|s|^2 - n) / (n (n - 1)). So it
    takes one pass, not one per pair.

    Returns:
        NaN for one learner, and where some learner's residual is zero.
    """
    n = len(residuals)
    norms = [np.sqrt(sum(_squares(m.numpy()) for m in own)) for own in residuals]
    if n == 1 or not all(norms):
        return float("nan")
    squares = 0.0
    for parts in zip(*residuals, strict=True):
        total = sum(m.numpy() / np.float32(norm) for m, norm in zip(parts, norms, strict=True))
        squares += _squares(total)
    return 1 - (squares - n) / (n * (n - 1))


def contraction(compensated: Sequence[tf.Tensor], reduced: Sequence[tf.Tensor]) -> float:
    """|x - reduced|^2 / |x|^2: the share that one step leaves for later; 0 of nothing."""
    left = sum(_squares((x - g).numpy()) for x, g in zip(compensated, reduced, strict=True))
    return _share(left, sum(_squares(x.numpy()) for x in compensated))


def build_up(reduced: Sequence[tf.Tensor], layout: Layout) -> float:
    """Elements of the reduced gradient that are not zero, over those that one learner keeps."""
    return sum(np.count_nonzero(g.numpy()) for g in reduced) / layout.kept


class SelectionQuality:
    """The leader's choice beside the exact top-k of x, a variable at a time.

    Args:
        shapes: of the compressed variables.
    """

    def __init__(self, shapes: Sequence[Sequence[int]]):
        self._zeros = [tf.Variable(tf.zeros(shape)) for shape in shapes]

    def caught(
        self, compensated: Sequence[tf.Tensor], reduced: Sequence[tf.Tensor], layout: Layout
    ) -> float:
        """|reduced|^2 by |x|^2 at the choice that the plan makes of x itself; 0 of nothing.

        Args:
            compensated: x, [compressed variable].
            reduced: what a step sent of it, likewise.
            layout: the step's plan.
        """
        best = _selected(compensated, self._zeros, layout)
        most = sum(_squares(x.numpy().ravel()[i]) for x, i in zip(compensated, best, strict=True))
        return _share(sum(_squares(g.numpy()) for g in reduced), most)

    def measure(
        self,
        compensated: Sequence[tf.Tensor],
        leader_gradients: Sequence[tf.Tensor],
        leader_residuals: Sequence[tf.Variable],
        layout: Layout,
        exact_layout: Layout,
    ) -> dict[str, float]:
        """Compares the sets and states the bound that follows.

        Args:
            compensated: x, [compressed variable].
            leader_gradients, leader_residuals: of this step's leader, [compressed variable].
            layout: the step's plan.
            exact_layout: the plan of exact selection.

        Returns:
            hamming_distance: of the two index sets, over the sum of their sizes (2k where both have
                k elements): 0 for equal sets, 1 for disjoint ones.
            gamma0: the contraction of the exact top-k.
            contraction_bound: sum over variables of (h + (1 - h) gamma0) |x|^2, over |x|^2, with
                each variable's own Hamming distance h = d/k and gamma0.

            The last two are 0 where x is.
        """
        chosen = _selected(leader_gradients, leader_residuals, layout)
        best = _selected(compensated, self._zeros, exact_layout)
        different = sizes = total = left = bound = 0.0
        for x, leaders, exact in zip(compensated, chosen, best, strict=True):
            x = x.numpy().ravel()
            size = len(leaders) + len(exact)
            apart = size - 2 * len(np.intersect1d(leaders, exact, assume_unique=True))
            squares = _squares(x)
            unsent = squares - _squares(x[exact])
            different, sizes = different + apart, sizes + size
            total, left = total + squares, left + unsent
            bound += apart / size * squares + (1 - apart / size) * unsent
        return {
            "hamming_distance": different / sizes,
            "gamma0": _share(left, total),
            "contraction_bound": _share(bound, total),
        }


def _selected(gradients, residuals, layout) -> list[np.ndarray]:
    layout = layout.in_memory
    words = ops.kernels_for(layout).compensate(gradients, residuals, True, layout).words
    return [indices.numpy() for indices in flat_indices(words, layout)]


def _share(part: float, total: float) -> float:
    return part / total if total else 0.0


def _squares(values: np.ndarray) -> float:
    return float(np.sum(np.square(values), dtype=np.float64))
