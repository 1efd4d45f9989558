"""ScaleCom's CLT-k reduction with a low-pass-filtered residual, as functions of tensors.

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

from tf_scalecom import selection
from tf_scalecom.communicator import Communicator
from tf_scalecom.layout import Layout, TensorLayout


class Exchanged(NamedTuple):
    """Result of one exchange; entry r of a list belongs to replica r of this process.

    Attributes:
      gradients: [replica][variable], summed over all replicas, bit-equal on all of them.
      residuals: [replica][compressed variable], float32 [elements]: next step's residuals.
      finite: bool scalar per replica, equal on all replicas. Where false some replica's gradient
        was not finite, and neither gradients nor residuals may be used.
    """

    gradients: list[list[tf.Tensor]]
    residuals: list[list[tf.Tensor]]
    finite: list[tf.Tensor]


def exchange(
    gradients: Sequence[Sequence[tf.Tensor]],
    residuals: Sequence[Sequence[tf.Tensor]],
    layout: Layout,
    step: tf.Tensor,
    communicator: Communicator,
) -> Exchanged:
    """Reduces gradients: dense the small tensors, as CLT-k the others.

    Args:
      gradients: [replica][variable], in the variable's shape and dtype.
      residuals: [replica][compressed variable], float32 [elements].
      layout: the plan for these variables.
      step: integer scalar, equal on all replicas.
      communicator: joins the replicas.

    Returns:
      An `Exchanged`.
    """
    if not layout.compressed:
        return _reduce_dense(gradients, residuals, communicator)
    tensors = [layout.tensors[i] for i in layout.compressed]
    flat = [[_flat_float32(grads[i]) for i in layout.compressed] for grads in gradients]

    # 1. Select on the leader; every replica compensates.
    compensated = [
        [m + g for m, g in zip(ms, gs, strict=True)] for ms, gs in zip(residuals, flat, strict=True)
    ]

    # 2. Broadcast the offsets.
    def packed_offsets(compensated):
        offsets = [
            selection.select_offsets(p, t) for p, t in zip(compensated, tensors, strict=True)
        ]
        return selection.pack_offsets(offsets, layout)

    leader = tf.cast(step % communicator.num_replicas, tf.int32)
    words = communicator.broadcast(
        [lambda ps=ps: packed_offsets(ps) for ps in compensated],
        leader,
        selection.packed_size(layout),
    )
    indices = [
        [selection.flat_indices(o, t)
         for o, t in zip(selection.unpack_offsets(w, layout), tensors, strict=True)]
        for w in words
    ]

    # 3. All-reduce the selected values, the dense tensors and the finite flag.
    selected = [
        [_to_wire(tf.gather(p, i), layout.value_dtype) for p, i in zip(ps, ixs, strict=True)]
        for ps, ixs in zip(compensated, indices, strict=True)
    ]
    reduced, dense = _reduce(gradients, compensated, selected, layout, communicator)

    # 4. Filter the residual and scatter the sums.
    next_residuals = [
        [low_pass_filter(m, g, p, i, s, layout.beta)
         for m, g, p, i, s in zip(ms, gs, ps, ixs, ss, strict=True)]
        for ms, gs, ps, ixs, ss in zip(
            residuals, flat, compensated, indices, selected, strict=True)
    ]
    sums = []
    for ixs, replica_reduced, replica_dense in zip(indices, reduced, dense, strict=True):
        out = dict(zip(layout.dense, replica_dense, strict=True))
        values = tf.split(replica_reduced[:-1], [t.kept for t in tensors])
        for position, i, v in zip(layout.compressed, ixs, values, strict=True):
            out[position] = _scatter(v, i, layout.tensors[position])
        sums.append([out[i] for i in range(len(layout.tensors))])
    finite = [_all_finite([r, *d]) for r, d in zip(reduced, dense, strict=True)]
    return Exchanged(sums, next_residuals, finite)


def _reduce_dense(
    gradients: Sequence[Sequence[tf.Tensor]],
    residuals: Sequence[Sequence[tf.Tensor]],
    communicator: Communicator,
) -> Exchanged:
    """Plain all-reduce of everything, residuals untouched: warm-up, and ratio 1."""
    sums = communicator.all_reduce(gradients)
    # A value that is not finite on one replica leaves a sum that is not finite on all.
    return Exchanged(sums, [list(ms) for ms in residuals], [_all_finite(s) for s in sums])


def low_pass_filter(
    residual: tf.Tensor,
    gradient: tf.Tensor,
    compensated: tf.Tensor,
    indices: tf.Tensor,
    selected: tf.Tensor,
    beta: float,
) -> tf.Tensor:
    """Next step's residual of one tensor.

    Args:
      residual: float32 [elements], m.
      gradient: float32 [elements], g.
      compensated: float32 [elements], p = m + g.
      indices: integer [kept], I.
      selected: [kept] in the dtype of the wire, s.
      beta: in (0, 1].

    Returns:
      float32 [elements].
    """
    unsent = tf.gather(compensated, indices) - tf.cast(selected, tf.float32)
    if beta == 1:
        off, on = compensated, unsent
    else:
        off = residual + beta * gradient
        on = (1 - beta) * tf.gather(residual, indices) + beta * unsent
    return tf.tensor_scatter_nd_update(off, indices[:, tf.newaxis], on)


def _reduce(gradients, compensated, selected, layout, communicator):
    """All-reduces values, dense tensors and flag; returns them per replica, values in float32.

    The flag is one more value: 0, or infinity from a replica whose compensated gradient is not
    finite, so that one finite check of the sums answers for all replicas alike.
    """
    buffers = []
    for grads, ps, ss in zip(gradients, compensated, selected, strict=True):
        flag = tf.where(_all_finite(ps), 0.0, float("inf"))
        values = tf.concat([*ss, tf.cast(flag, layout.value_dtype)[tf.newaxis]], axis=0)
        buffers.append([values, *(grads[i] for i in layout.dense)])
    sums = communicator.all_reduce(buffers)
    return [tf.cast(s[0], tf.float32) for s in sums], [s[1:] for s in sums]


def _to_wire(values: tf.Tensor, dtype: str) -> tf.Tensor:
    if dtype == "float16":  # Values past its range saturate; the rest stays in the residual.
        values = tf.clip_by_value(values, tf.float16.min, tf.float16.max)
    return tf.cast(values, dtype)


def _scatter(values: tf.Tensor, indices: tf.Tensor, tensor: TensorLayout) -> tf.Tensor:
    shape = tf.constant([tensor.elements], indices.dtype)
    flat = tf.scatter_nd(indices[:, tf.newaxis], tf.cast(values, tensor.dtype), shape)
    return tf.reshape(flat, tensor.shape)


def _flat_float32(gradient: tf.Tensor) -> tf.Tensor:
    # Duplicate rows of IndexedSlices are summed by the conversion.
    return tf.reshape(tf.cast(tf.convert_to_tensor(gradient), tf.float32), [-1])


def _all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    checks = []
    for t in tensors:
        t = t.values if isinstance(t, tf.IndexedSlices) else t
        if t.dtype.is_floating:
            checks.append(tf.reduce_all(tf.math.is_finite(t)))
    return tf.reduce_all(checks) if checks else tf.constant(True)
