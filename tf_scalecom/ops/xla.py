"""The kernels of CLT-k in plain TensorFlow operations: static shapes, compilable by XLA.

The twin of the native kernels, for devices that those do not know (TPU) and machines without the
library. It selects the same elements to the offset, and gives the same values. Subnormal numbers
are zeros in both, as TensorFlow's threads have it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_scalecom.ops.kernels import Compensated, Gathered
from tf_scalecom.ops.words import flat_indices, index_dtype, pack_offsets, slices
from tf_scalecom.wire.layout import Layout, TensorLayout
from tf_scalecom.wire.selection import MAX_CHUNK_SIZE

name = "xla"
title = "plain TensorFlow kernels"
descends_in_place = False


def suits() -> tuple[bool, str]:
    """See `Kernels`."""
    return True, "plain TensorFlow operations run on all devices"


def unavailable() -> str | None:
    """See `Kernels`."""
    return None


def unsupported(layout: Layout) -> str | None:
    """See `Kernels`."""
    if all(t.chunk_size <= MAX_CHUNK_SIZE for t in _tensors(layout)):
        return None
    return f"chunks of over {MAX_CHUNK_SIZE} elements"


def compensate(
    gradients: Sequence[tf.Tensor],
    residuals: Sequence[tf.Variable],
    leads: tf.Tensor | bool,
    layout: Layout,
) -> Compensated:
    """See `Kernels`."""
    values = [m + tf.cast(g, tf.float32) for m, g in zip(residuals, gradients, strict=True)]

    def select():
        offsets = [
            _RULES[t.selection](_flat(p), t) for p, t in zip(values, _tensors(layout), strict=True)
        ]
        # Not as int32, which on a GPU would leave the cond in host memory.
        return tf.bitcast(pack_offsets(offsets, layout), tf.uint32)

    words = tf.cond(
        tf.convert_to_tensor(leads), select, lambda: tf.zeros([layout.offset_words], tf.uint32)
    )
    words = tf.bitcast(words, tf.int32)
    nonfinite = tf.where(all_finite(values), tf.constant(0, tf.uint32), tf.constant(1, tf.uint32))
    return Compensated(values, words, nonfinite)


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether every element is finite; bool scalar. Integers are."""
    checks = [
        tf.reduce_all(tf.math.is_finite(t.values if isinstance(t, tf.IndexedSlices) else t))
        for t in tensors
        if t.dtype.is_floating
    ]
    return tf.reduce_all(checks) if checks else tf.constant(True)


def gather(
    compensated: Sequence[tf.Tensor],
    words: tf.Tensor,
    nonfinite: tf.Tensor,
    layout: Layout,
    limit: float | Sequence[float],
) -> Gathered:
    """See `Kernels`."""
    sent, unsent = [], []
    for values, indices, most in zip(
        compensated, flat_indices(words, layout), limits(layout, limit), strict=True
    ):
        flat = _flat(values)
        selected = tf.gather(flat, indices)
        sent.append(_on_the_wire(selected, layout.value_dtype, most))
        rest = selected - tf.cast(sent[-1], tf.float32)
        flat = tf.tensor_scatter_nd_update(flat, indices[:, tf.newaxis], rest)
        unsent.append(tf.reshape(flat, values.shape))
    flag = tf.where(tf.equal(nonfinite, 0), 0.0, float("inf"))
    selected = tf.concat([*sent, tf.cast(flag, layout.value_dtype)[tf.newaxis]], axis=0)
    return Gathered(selected, unsent)


def filter_residuals(
    unsent: Sequence[tf.Tensor],
    residuals: Sequence[tf.Variable],
    finite: tf.Tensor | bool,
    layout: Layout,
) -> list[tf.Tensor]:
    """See `Kernels`."""

    def keep():
        for u, residual in zip(unsent, residuals, strict=True):
            residual.assign(tf.reshape(low_pass_filter(u, residual, layout.beta), residual.shape))

    tf.cond(finite, keep, lambda: None)
    return list(unsent)


def low_pass_filter(unsent: tf.Tensor, residual: tf.Tensor, beta: float) -> tf.Tensor:
    """(1 - beta) residual + beta unsent, where 1 - beta is the difference of float32 numbers."""
    if beta == 1:
        return unsent
    forget = np.float32(1) - np.float32(beta)
    return forget * residual + beta * unsent


def scatter(
    words: tf.Tensor, reduced: tf.Tensor, layout: Layout, free: Sequence[tf.Tensor] = ()
) -> list[tf.Tensor]:
    """See `Kernels`. Nothing can be written in the place of `free` here."""
    return [
        _scatter(s, t)
        for s, t in zip(slices(words, reduced, layout), _tensors(layout), strict=True)
    ]


def descend(
    variables: Sequence[tf.Variable],
    slices: Sequence[tf.IndexedSlices],
    learning_rate: tf.Tensor,
) -> None:
    """See `Kernels`."""
    for variable, of_variable in zip(variables, slices, strict=True):
        gradient = tf.reshape(tf.convert_to_tensor(of_variable), variable.shape)
        variable.assign_sub(gradient * learning_rate)


def add(
    tensors: Sequence[tf.Tensor],
    indices: Sequence[tf.Tensor],
    values: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """See `Kernels`."""
    sums = []
    for tensor, at, added in zip(tensors, indices, values, strict=True):
        flat = tf.reshape(tensor, [-1])
        is_inside = (at >= 0) & (at < tf.size(flat, out_type=at.dtype))
        at, added = tf.where(is_inside, at, 0), tf.where(is_inside, added, 0.0)
        flat = tf.tensor_scatter_nd_add(flat, at[..., tf.newaxis], added)
        sums.append(tf.reshape(flat, tf.shape(tensor)))
    return sums


def limits(layout: Layout, limit: float | Sequence[float]) -> list[float]:
    """One limit per compressed tensor of `layout`."""
    return np.broadcast_to(limit, len(layout.compressed)).tolist()


def _largest_of_chunks(compensated: tf.Tensor, tensor: TensorLayout) -> tf.Tensor:
    magnitude = tf.abs(compensated)
    body_size = tensor.full_chunks * tensor.chunk_size
    parts = []
    if tensor.full_chunks:
        chunks = tf.reshape(magnitude[:body_size], [tensor.full_chunks, tensor.chunk_size])
        parts.append(_largest(chunks, tensor.chunk_keep, index_dtype(tensor)))
    if tensor.tail_keep:
        tail = magnitude[tf.newaxis, body_size:]
        parts.append(_largest(tail, tensor.tail_keep, index_dtype(tensor)))
    return tf.concat(parts, axis=0)


def _largest_of_all(compensated: tf.Tensor, tensor: TensorLayout) -> tf.Tensor:
    return tf.sort(_largest(tf.abs(compensated)[tf.newaxis], tensor.kept, index_dtype(tensor)))


def _largest(chunks: tf.Tensor, keep: int, dtype: tf.DType) -> tf.Tensor:
    if keep == 1:
        return tf.cast(tf.argmax(chunks, axis=1, output_type=tf.int32), dtype)
    return tf.reshape(tf.cast(tf.math.top_k(chunks, keep).indices, dtype), [-1])


# Selection -> (residual + gradient, flat; its plan) -> offsets [kept], chunk after chunk.
_RULES: dict[str, Callable[[tf.Tensor, TensorLayout], tf.Tensor]] = {
    "chunk": _largest_of_chunks,
    "exact": _largest_of_all,
}


def _on_the_wire(values: tf.Tensor, dtype: str, limit: float) -> tf.Tensor:
    """Values as they travel."""
    limit = min(limit, float(tf.as_dtype(dtype).max))
    if limit < tf.float32.max:
        limited = tf.clip_by_value(values, -limit, limit)
        values = tf.where(tf.math.is_finite(values), limited, values)
    return tf.cast(values, dtype)


def _scatter(of_tensor: tf.IndexedSlices, tensor: TensorLayout) -> tf.Tensor:
    flat = tf.scatter_nd(of_tensor.indices[:, tf.newaxis], of_tensor.values, of_tensor.dense_shape)
    return tf.reshape(flat, tensor.shape)


def _flat(tensor) -> tf.Tensor:
    return tf.reshape(tf.cast(tensor, tf.float32), [-1])


def _tensors(layout: Layout) -> list[TensorLayout]:
    return [layout.tensors[i] for i in layout.compressed]
