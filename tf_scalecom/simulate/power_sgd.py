"""PowerSGD (Vogels et al., NeurIPS 2019, arXiv 1905.13727), the low-rank rival.

One step for the matrix of one variable, residual e_i, gradient g_i, sums over n learners:

    M_i  = g_i + e_i
    P    = orthogonal basis of (sum_i M_i) Q     all-reduce of P's rows * rank values
    Q'   = (sum_i M_i)^T P                       all-reduce of Q's rows * rank values
    g    = P Q'^T                                reduced
    e_i' = M_i - g / n                           Q' starts the next step
"""

import math

import numpy as np
import tensorflow as tf

from tf_scalecom.simulate.config import SimulationConfig
from tf_scalecom.simulate.reduction import Reduced, named_residuals, zero_residuals
from tf_scalecom.wire.layout import MIN_COMPRESSED_ELEMENTS, Layout
from tf_scalecom.wire.report import compression_report


class PowerSGD:
    """Reduces matrices of 1,000 elements or more at a rank, the rest dense.

    A convolution's kernel is a matrix of one column per filter. Whatever the rank would not make
    smaller stays dense.
    """

    def __init__(self, layout: Layout, config: SimulationConfig):
        self._learners = config.learners
        self._rank = config.rank
        self._shapes = [t.shape for t in layout.tensors]
        self.compressed = tuple(i for i, s in enumerate(self._shapes) if self._pays(s))
        self.residuals = zero_residuals(config.learners, [self._shapes[i] for i in self.compressed])
        rng = np.random.default_rng([config.seed, 0])
        self._queries = [
            tf.Variable(rng.normal(size=(self._shapes[i][-1], config.rank)).astype(np.float32))
            for i in self.compressed
        ]

    def reduce(self, gradients, layout, step):
        """As `methods.Method`; dense where the plan compresses nothing."""
        sums = [tf.add_n(parts) for parts in zip(*gradients, strict=True)]
        if layout.compressed:
            for place, position in enumerate(self.compressed):
                held = tf.add_n([own[place].value() for own in self.residuals])
                low_rank = self._low_rank(sums[position] + held, self._queries[place])
                sums[position] = low_rank
                for own, residuals in zip(gradients, self.residuals, strict=True):
                    residuals[place].assign_add(own[position] - low_rank / self._learners)
        return Reduced(sums, [sums] * self._learners)

    def _low_rank(self, total, query):
        # The products are linear: those of the sum are the sums of the learners'.
        matrix = tf.reshape(total, [-1, total.shape[-1]])
        basis, _ = tf.linalg.qr(matrix @ query)
        query.assign(tf.matmul(matrix, basis, transpose_a=True))
        return tf.reshape(tf.matmul(basis, query, transpose_b=True), total.shape)

    def bytes_sent(self, layout):
        """4 * rank * (rows + columns) of each matrix and 4 of each other element, by a ring."""
        if not layout.compressed:
            return compression_report(layout, self._learners, broadcasts=True).bytes_sent
        values = sum(
            self._factor_values(shape) if i in self.compressed else math.prod(shape)
            for i, shape in enumerate(self._shapes)
        )
        return 4 * values * 2 * (self._learners - 1) / self._learners

    def variables(self):
        """Residuals and queries by name."""
        queries = {f"query/{place}": query for place, query in enumerate(self._queries)}
        return queries | named_residuals(self.residuals)

    def _pays(self, shape):
        elements = math.prod(shape)
        return (
            len(shape) >= 2
            and elements >= MIN_COMPRESSED_ELEMENTS
            and self._factor_values(shape) < elements
        )

    def _factor_values(self, shape):
        columns = shape[-1]
        return self._rank * (math.prod(shape) // columns + columns)
