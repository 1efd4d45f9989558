"""ScaleCom's CLT-k reduction with a low-pass-filtered residual: one step, for any communicator.

One step on replica i of n, residual m_i, gradient g_i (Chen et al., NeurIPS 2020, Algorithm 1):

    p_i    = m_i + g_i                                        compensated
    I      = largest |p_leader| per chunk, leader = step mod n  select, broadcast
    s_i    = p_i on I, in the dtype of the wire                 selected
    g      = sum_i s_i on I, 0 elsewhere                        reduced
    m_i'   = m_i + beta g_i                    off I            residual
           = (1 - beta) m_i + beta (p_i - s_i)   on I

The reduction sums: Keras has already scaled the loss by 1/n. With a float32 wire p_i - s_i is 0;
with a 16-bit wire it is the error of the cast, which stays in the residual.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.communicator import Communicator
from tf_scalecom.layout import Layout


class Exchanged(NamedTuple):
    """Result of one exchange; entry r of a list belongs to replica r of this process.

    Attributes:
      gradients: [replica][variable], summed over all replicas, bit-equal on all of them.
      finite: bool scalar per replica, equal on all. Where false some replica's gradient was not
        finite: residuals are as they were, and the gradients are not to be used.
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
    compressed = [[grads[i] for i in layout.compressed] for grads in gradients]
    dense = [[grads[i] for i in layout.dense] for grads in gradients]

    # 1. Select on the leader. 2. Broadcast the offsets.
    words = communicator.broadcast(
        [
            lambda g=g, m=m: kernels.select(g, m, layout)
            for g, m in zip(compressed, residuals, strict=True)
        ],
        leader=tf.cast(step % communicator.num_replicas, tf.int32),
        size=layout.offset_words,
    )

    # 3. All-reduce the selected values, a finite flag and the dense tensors.
    # The flag is one more value: 0, or infinity from a replica whose gradient is not finite, so
    # that a check of the sums answers for all replicas, and alike on all.
    values = [
        kernels.gather(g, m, w, layout)
        for g, m, w in zip(compressed, residuals, words, strict=True)
    ]
    flags = [tf.where(kernels.all_finite(g), 0.0, float("inf")) for g in compressed]
    sums = communicator.all_reduce(
        [
            [tf.concat([v, tf.cast(flag, v.dtype)[tf.newaxis]], axis=0), *d]
            for v, flag, d in zip(values, flags, dense, strict=True)
        ]
    )
    finite = [ops.all_finite(s) for s in sums]

    # 4. Filter the residuals, scatter the sums.
    reduced = []
    for g, m, w, v, s, f in zip(compressed, residuals, words, values, sums, finite, strict=True):
        parts = kernels.update(g, m, w, v, s[0][:-1], f, layout)
        by_position = dict(zip(layout.compressed + layout.dense, parts + s[1:], strict=True))
        reduced.append([by_position[i] for i in range(len(layout.tensors))])
    return Exchanged(reduced, finite)


def _reduce_dense(gradients, communicator) -> Exchanged:
    """Plain all-reduce of everything, residuals untouched: warm-up, and ratio 1."""
    sums = communicator.all_reduce(gradients)
    # A value that is not finite on one replica leaves a sum that is not finite on all.
    return Exchanged(sums, [ops.all_finite(s) for s in sums])
