"""ScaleCom's CLT-k reduction with a low-pass-filtered residual: one step, for any communicator.

One step on replica i of n, residual m_i, gradient g_i (Chen et al., NeurIPS 2020, Algorithm 1):

    p_i    = m_i + g_i                                        compensated
    I      = largest |p_leader| per chunk, leader = step mod n  select, broadcast
    s_i    = p_i on I, in the dtype of the wire                 selected
    g      = sum_i s_i on I, 0 elsewhere                        reduced
    m_i'   = m_i + beta g_i                    off I            residual
           = (1 - beta) m_i + beta (p_i - s_i)   on I

The reduction sums: Keras has already scaled the loss by 1/n. With a float32 wire p_i - s_i is 0;
with a 16-bit wire it is the error of the cast, which stays in the residual. So does what would
make the sum overflow, on the wire or in the variable's dtype: s_i is at most 1/n of its range.

All of this where every p_i is finite. Otherwise m_i' = m_i, and there is no g.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.reduction.communicator import Communicator
from tf_scalecom.wire.dtypes import DTYPES
from tf_scalecom.wire.layout import Layout


class Exchanged(NamedTuple):
    """Result of one exchange; entry r of a list belongs to replica r of this process.

    Attributes:
        gradients: [replica][variable], summed over all replicas, bit-equal on all of them.
        finite: bool scalar per replica, equal on all. Where false some replica's gradient, or its
            residual + gradient, was not finite: residuals are as they were, and the gradients are
            not to be used.
    """

    gradients: list[list[tf.Tensor]]
    finite: list[tf.Tensor]


def exchange(
    gradients: Sequence[Sequence[tf.Tensor]],
    residuals: Sequence[Sequence[tf.Variable]],
    layout: Layout,
    step: tf.Tensor,
    communicator: Communicator,
) -> Exchanged:
    """Reduces gradients: dense the small tensors, as CLT-k the others.

    Args:
        gradients: [replica][variable], in the variable's shape and dtype.
        residuals: [replica][compressed variable], float32 variables in the variable's shape.
            Updated in place, so that a step needs no second copy of them.
        layout: the plan for these variables.
        step: integer scalar, equal on all replicas.
        communicator: joins the replicas.

    Returns:
        An `Exchanged`.
    """
    if not layout.compressed:
        return _reduce_dense(gradients, communicator)
    kernels = ops.kernels_for(layout)
    leader = tf.cast(step % communicator.num_replicas, tf.int32)
    buckets = [
        _Bucket(positions, gradients, residuals, layout, kernels)
        for positions in layout.buckets(communicator.bucket_bytes)
    ]
    # A bucket waits for its own gradients only, and so travels while others are still computed.
    for bucket in buckets:
        bucket.send(leader, communicator)
    # One check of the sums answers for all replicas, and alike on all.
    finite = [
        tf.reduce_all([ops.all_finite(bucket.sums[r]) for bucket in buckets])
        for r in range(len(gradients))
    ]
    reduced = [[None] * len(layout.tensors) for _ in gradients]
    for bucket in buckets:
        bucket.receive(finite, reduced)
    return Exchanged(reduced, finite)


class _Bucket:
    """The exchange of the variables at some positions. Entry r of a list is that of replica r."""

    def __init__(self, positions, gradients, residuals, layout, kernels):
        self._kernels = kernels
        self._layout = layout.subset(positions)
        self._compressed = [positions[i] for i in self._layout.compressed]
        self._dense = [positions[i] for i in self._layout.dense]
        self._gradients = [[gs[i] for i in self._compressed] for gs in gradients]
        self._dense_gradients = [[gs[i] for i in self._dense] for gs in gradients]
        places = [layout.compressed.index(i) for i in self._compressed]
        self._residuals = [[ms[place] for place in places] for ms in residuals]

    def send(self, leader, communicator):
        """Steps up to the sums, not all finite unless residual + gradient was on all replicas."""
        if not self._compressed:
            self.sums = communicator.all_reduce(self._dense_gradients)
            return
        kernels, layout = self._kernels, self._layout

        # 1. Select on the leader. 2. Broadcast the offsets.
        self._words = communicator.broadcast(
            [
                lambda g=g, m=m: kernels.select(g, m, layout)
                for g, m in zip(self._gradients, self._residuals, strict=True)
            ],
            leader=leader,
            size=layout.offset_words,
        )

        # 3. All-reduce the selected values, a finite flag and the dense tensors.
        # The flag is one more value: 0, or infinity from a replica whose residual + gradient is not
        # finite. Nobody else holds the values, so that they are summed in their own buffer.
        self._limits = [
            _summable_limit(layout.value_dtype, layout.tensors[i].dtype, communicator.num_replicas)
            for i in layout.compressed
        ]
        self.sums = communicator.all_reduce(
            [
                [kernels.gather(g, m, w, kernels.any_nonfinite(g, m), layout, self._limits), *d]
                for g, m, w, d in zip(
                    self._gradients,
                    self._residuals,
                    self._words,
                    self._dense_gradients,
                    strict=True,
                )
            ]
        )

    def receive(self, finite, reduced):
        """Step 4: filters the residuals where `finite`, scatters the sums into `reduced`."""
        for r, sums in enumerate(self.sums):
            parts, dense = [], sums
            if self._compressed:
                selected, *dense = sums
                parts = self._kernels.update(
                    self._gradients[r],
                    self._residuals[r],
                    self._words[r],
                    selected,
                    finite[r],
                    self._layout,
                    self._limits,
                )
            positions = self._compressed + self._dense
            for position, gradient in zip(positions, [*parts, *dense], strict=True):
                reduced[r][position] = gradient


def _summable_limit(value_dtype: str, dtype: str, num_replicas: int) -> float:
    """Limit of a value on the wire, for a finite sum over all replicas. The rest stays behind.

    It has so few significant bits that all its multiples up to the sum are numbers of both dtypes:
    then no order of summing rounds up to infinity, and no cast takes anything from the sum.

    Args:
        value_dtype: dtype of the wire.
        dtype: dtype of the variable, to which the sum is cast.
        num_replicas: n.
    """
    largest = float(min(tf.as_dtype(value_dtype).max, tf.as_dtype(dtype).max))
    bits = min(DTYPES[value_dtype].significant_bits, DTYPES[dtype].significant_bits)
    bits = max(1, bits - (num_replicas - 1).bit_length())
    fraction, exponent = math.frexp(largest / num_replicas)
    return math.ldexp(math.floor(math.ldexp(fraction, bits)), exponent - bits)


def _reduce_dense(gradients, communicator) -> Exchanged:
    """Plain all-reduce of everything, residuals untouched: warm-up, and ratio 1."""
    sums = communicator.all_reduce(gradients)
    # A value that is not finite on one replica leaves a sum that is not finite on all.
    return Exchanged(sums, [ops.all_finite(s) for s in sums])
