"""The kernels of CLT-k in plain TensorFlow operations: static shapes, compilable by XLA.

The twin of the native kernels, for devices that those do not know (TPU) and machines without the
library. It selects the same elements to the offset, and gives the same values. Subnormal numbers
are zeros in both, as TensorFlow's threads have it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_scalecom.wire.layout import Layout, TensorLayout
from tf_scalecom.wire.selection import MAX_CHUNK_SIZE

name = "xla"
title = "plain TensorFlow kernels"

# Width of an offset in bytes -> its type.
_OFFSET_DTYPES = {1: tf.uint8, 2: tf.uint16, 4: tf.int32}


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


def select(
    gradients: Sequence[tf.Tensor], residuals: Sequence[tf.Variable], layout: Layout
) -> tf.Tensor:
    """See `Kernels`."""
    compensated = map(_compensated, gradients, residuals)
    offsets = [
        _RULES[t.selection](p, t) for p, t in zip(compensated, _tensors(layout), strict=True)
    ]
    return pack_offsets(offsets, layout)


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether every element is finite; bool scalar. Integers are."""
    checks = [
        tf.reduce_all(tf.math.is_finite(t.values if isinstance(t, tf.IndexedSlices) else t))
        for t in tensors
        if t.dtype.is_floating
    ]
    return tf.reduce_all(checks) if checks else tf.constant(True)


def any_nonfinite(
    gradients: Sequence[tf.Tensor], residuals: Sequence[tf.Variable] = ()
) -> tf.Tensor:
    """See `Kernels`."""
    compensated = map(_compensated, gradients, residuals) if residuals else map(_flat, gradients)
    finite = all_finite(list(compensated))
    return tf.where(finite, tf.constant(0, tf.uint32), tf.constant(1, tf.uint32))


def gather(
    gradients: Sequence[tf.Tensor],
    residuals: Sequence[tf.Variable],
    words: tf.Tensor,
    nonfinite: tf.Tensor,
    layout: Layout,
    limit: float | Sequence[float],
) -> tf.Tensor:
    """See `Kernels`."""
    values = _sent(gradients, residuals, flat_indices(words, layout), layout, limit)
    flag = tf.where(tf.equal(nonfinite, 0), 0.0, float("inf"))
    return tf.concat([*values, tf.cast(flag, layout.value_dtype)[tf.newaxis]], axis=0)


def update(
    gradients: Sequence[tf.Tensor],
    residuals: Sequence[tf.Variable],
    words: tf.Tensor,
    reduced: tf.Tensor,
    finite: tf.Tensor,
    layout: Layout,
    limit: float | Sequence[float],
) -> list[tf.Tensor]:
    """See `Kernels`."""
    indices = flat_indices(words, layout)
    # Not in the cond: a compiler may take a cast to the wire's dtype and back for none at all.
    sent = _sent(gradients, residuals, indices, layout, limit)

    def keep_unsent():
        for gradient, residual, i, s in zip(gradients, residuals, indices, sent, strict=True):
            flat = low_pass_filter(_flat(gradient), _flat(residual), i, s, layout.beta)
            residual.assign(tf.reshape(flat, residual.shape))

    tf.cond(finite, keep_unsent, lambda: None)
    return scatter(reduced, indices, layout)


def scatter(selected: tf.Tensor, indices: Sequence[tf.Tensor], layout: Layout) -> list[tf.Tensor]:
    """What `gather` made, or a sum of it, as tensors that are zero elsewhere.

    Args:
        selected: [layout.kept + 1] in the dtype of the wire. The flag at its end is not read.
        indices: of `flat_indices`.
        layout: the plan.
    """
    *values, _ = tf.split(selected, [*(t.kept for t in _tensors(layout)), 1])
    return [_scatter(v, i, t) for v, i, t in zip(values, indices, _tensors(layout), strict=True)]


def low_pass_filter(gradient, residual, indices, sent, beta) -> tf.Tensor:
    """Next step's residual of one flat tensor.

    Args:
        gradient: float32 [elements], g.
        residual: float32 [elements], m.
        indices: integer [kept], I.
        sent: [kept] in the dtype of the wire, s.
        beta: in (0, 1].

    Returns:
        float32 [elements]: m + beta g off I, (1 - beta) m + beta (m + g - s) on I. 1 - beta is the
        difference of float32 numbers.
    """
    compensated = residual + gradient
    unsent = tf.gather(compensated, indices) - tf.cast(sent, tf.float32)
    if beta == 1:
        off, on = compensated, unsent
    else:
        off = residual + beta * gradient
        forget = np.float32(1) - np.float32(beta)
        on = forget * tf.gather(residual, indices) + beta * unsent
    return tf.tensor_scatter_nd_update(off, indices[:, tf.newaxis], on)


def pack_offsets(offsets: Sequence[tf.Tensor], layout: Layout) -> tf.Tensor:
    """Packs offsets into as few bytes as their chunks need.

    TensorFlow's collectives broadcast no 8- or 16-bit integers, so bytes travel as int32 words.

    Args:
        offsets: one int32 [kept] per compressed tensor of `layout`.
        layout: the plan.

    Returns:
        int32 [layout.offset_words]: first all 1-byte offsets, then 2-byte, then 4-byte ones, each
        group little-endian and padded with zeros to a whole word.
    """
    words = []
    for width, members in layout.offset_groups.items():
        group = tf.concat([offsets[i] for i in members], axis=0)
        group = tf.cast(group, _OFFSET_DTYPES[width])
        per_word = 4 // width
        if per_word > 1:
            group = tf.pad(group, [[0, -group.shape[0] % per_word]])
            group = tf.bitcast(tf.reshape(group, [-1, per_word]), tf.int32)
        words.append(group)
    return tf.concat(words, axis=0)


def unpack_offsets(words: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
    """Inverse of `pack_offsets`: one int32 [kept] per compressed tensor of `layout`."""
    offsets: dict[int, tf.Tensor] = {}
    tensors = _tensors(layout)
    start = 0
    for width, members in layout.offset_groups.items():
        sizes = [tensors[i].kept for i in members]
        size = -(-sum(sizes) * width // 4)
        group = words[start : start + size]
        start += size
        if width < 4:
            group = tf.reshape(tf.bitcast(group, _OFFSET_DTYPES[width]), [-1])[: sum(sizes)]
        parts = tf.split(tf.cast(group, tf.int32), sizes)
        offsets.update(zip(members, parts, strict=True))
    return [offsets[i] for i in range(len(tensors))]


def flat_indices(words: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
    """Indices in the flat tensors: [kept] each; int32, or int64 past 2**31 elements."""
    indices = []
    for offsets, tensor in zip(unpack_offsets(words, layout), _tensors(layout), strict=True):
        dtype = tf.int32 if tensor.elements <= tf.int32.max else tf.int64
        starts = tf.range(tensor.full_chunks, dtype=dtype) * tensor.chunk_size
        tail = tf.fill([tensor.tail_keep], tensor.full_chunks * tensor.chunk_size)
        starts = tf.concat([tf.repeat(starts, tensor.chunk_keep), tf.cast(tail, dtype)], axis=0)
        indices.append(tf.cast(offsets, dtype) + starts)
    return indices


def limits(layout: Layout, limit: float | Sequence[float]) -> list[float]:
    """One limit per compressed tensor of `layout`."""
    return np.broadcast_to(limit, len(layout.compressed)).tolist()


def _largest_of_chunks(compensated: tf.Tensor, tensor: TensorLayout) -> tf.Tensor:
    magnitude = tf.abs(compensated)
    body_size = tensor.full_chunks * tensor.chunk_size
    parts = []
    if tensor.full_chunks:
        chunks = tf.reshape(magnitude[:body_size], [tensor.full_chunks, tensor.chunk_size])
        parts.append(_largest(chunks, tensor.chunk_keep))
    if tensor.tail_keep:
        parts.append(_largest(magnitude[tf.newaxis, body_size:], tensor.tail_keep))
    return tf.concat(parts, axis=0)


def _largest_of_all(compensated: tf.Tensor, tensor: TensorLayout) -> tf.Tensor:
    return tf.sort(_largest(tf.abs(compensated)[tf.newaxis], tensor.kept))


def _largest(chunks: tf.Tensor, keep: int) -> tf.Tensor:
    if keep == 1:
        return tf.argmax(chunks, axis=1, output_type=tf.int32)
    return tf.reshape(tf.math.top_k(chunks, keep).indices, [-1])


# Selection -> (residual + gradient, flat; its plan) -> int32 [kept] offsets, chunk after chunk.
_RULES: dict[str, Callable[[tf.Tensor, TensorLayout], tf.Tensor]] = {
    "chunk": _largest_of_chunks,
    "exact": _largest_of_all,
}


def _sent(gradients, residuals, indices, layout, limit) -> list[tf.Tensor]:
    """All tensors' values at `indices`, as they travel."""
    tensors = zip(gradients, residuals, indices, limits(layout, limit), strict=True)
    return [_selected(g, m, i, layout.value_dtype, most) for g, m, i, most in tensors]


def _selected(gradient, residual, indices, dtype: str, limit: float) -> tf.Tensor:
    """One tensor's values at `indices`, as they travel."""
    values = tf.gather(_compensated(gradient, residual), indices)
    limit = min(limit, float(tf.as_dtype(dtype).max))
    if limit < tf.float32.max:
        limited = tf.clip_by_value(values, -limit, limit)
        values = tf.where(tf.math.is_finite(values), limited, values)
    return tf.cast(values, dtype)


def _scatter(values: tf.Tensor, indices: tf.Tensor, tensor: TensorLayout) -> tf.Tensor:
    shape = tf.constant([tensor.elements], indices.dtype)
    flat = tf.scatter_nd(indices[:, tf.newaxis], tf.cast(values, tensor.dtype), shape)
    return tf.reshape(flat, tensor.shape)


def _compensated(gradient, residual) -> tf.Tensor:
    return _flat(residual) + _flat(gradient)


def _flat(tensor) -> tf.Tensor:
    return tf.reshape(tf.cast(tensor, tf.float32), [-1])


def _tensors(layout: Layout) -> list[TensorLayout]:
    return [layout.tensors[i] for i in layout.compressed]
