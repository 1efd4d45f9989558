"""The kernels of CLT-k in plain TensorFlow operations: static shapes, compilable by XLA.

The twin of the native kernels, for devices that those do not know (TPU) and machines without the
library. It selects the same elements to the offset, and gives the same values.

Every function works on one replica's compressed tensors: `gradients` in their own shape and dtype,
`residuals` as float32 variables of the same shapes, in the order of `Layout.compressed`.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_scalecom.layout import Layout, TensorLayout

name = "xla"

# Width of an offset in bytes -> its type.
_OFFSET_DTYPES = {1: tf.uint8, 2: tf.uint16, 4: tf.int32}


def select(
    gradients: Sequence[tf.Tensor], residuals: Sequence[tf.Variable], layout: Layout
) -> tf.Tensor:
    """Offsets of the largest |residual + gradient| of each chunk, as they travel.

    Within a chunk of a chunk-wise selection they are ordered by falling magnitude, among equals
    the lowest offset first; those of an exact selection rise.

    Returns:
      int32 [layout.offset_words]; see `pack_offsets`. In range even where a gradient is not
      finite.
    """
    compensated = map(_compensated, gradients, residuals)
    offsets = [_offsets(p, t) for p, t in zip(compensated, _tensors(layout), strict=True)]
    return pack_offsets(offsets, layout)


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether every element is finite; bool scalar. Integers are."""
    checks = [
        tf.reduce_all(tf.math.is_finite(t.values if isinstance(t, tf.IndexedSlices) else t))
        for t in tensors
        if t.dtype.is_floating
    ]
    return tf.reduce_all(checks) if checks else tf.constant(True)


def gather(
    gradients: Sequence[tf.Tensor],
    residuals: Sequence[tf.Variable],
    words: tf.Tensor,
    layout: Layout,
) -> tf.Tensor:
    """The selected values of all tensors, [layout.kept] in the dtype of the wire.

    A finite value past float16's range saturates.
    """
    values = [
        tf.gather(p, i)
        for p, i in zip(map(_compensated, gradients, residuals), flat_indices(words, layout),
                        strict=True)
    ]
    return _to_wire(tf.concat(values, axis=0), layout.value_dtype)


def update(
    gradients: Sequence[tf.Tensor],
    residuals: Sequence[tf.Variable],
    words: tf.Tensor,
    values: tf.Tensor,
    reduced: tf.Tensor,
    finite: tf.Tensor,
    layout: Layout,
) -> list[tf.Tensor]:
    """Filters the residuals in place, if `finite`, and scatters the sums.

    Args:
      gradients: this replica's.
      residuals: its residuals, updated.
      words: offsets, from the leader's `select`.
      values: [layout.kept] what this replica sent.
      reduced: [layout.kept] the sum over all replicas, in the dtype of the wire.
      finite: bool scalar; where false residuals stay and the result is not to be used.
      layout: the plan.

    Returns:
      Reduced gradients, in the shapes and dtypes of `gradients`.
    """
    indices = flat_indices(words, layout)
    sizes = [t.kept for t in _tensors(layout)]

    def keep_unsent():
        for gradient, residual, i, sent in zip(
            gradients, residuals, indices, tf.split(values, sizes), strict=True
        ):
            flat = low_pass_filter(_flat(residual), _flat(gradient), i, sent, layout.beta)
            residual.assign(tf.reshape(flat, residual.shape))

    tf.cond(finite, keep_unsent, lambda: None)
    return [
        _scatter(v, i, t)
        for v, i, t in zip(tf.split(reduced, sizes), indices, _tensors(layout), strict=True)
    ]


def low_pass_filter(residual, gradient, indices, sent, beta) -> tf.Tensor:
    """Next step's residual of one flat tensor.

    Args:
      residual: float32 [elements], m.
      gradient: float32 [elements], g.
      indices: integer [kept], I.
      sent: [kept] in the dtype of the wire, s.
      beta: in (0, 1].

    Returns:
      float32 [elements]: m + beta g off I, (1 - beta) m + beta (m + g - s) on I.
    """
    compensated = residual + gradient
    unsent = tf.gather(compensated, indices) - tf.cast(sent, tf.float32)
    if beta == 1:
        off, on = compensated, unsent
    else:
        off = residual + beta * gradient
        on = (1 - beta) * tf.gather(residual, indices) + beta * unsent
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


def _offsets(compensated: tf.Tensor, tensor: TensorLayout) -> tf.Tensor:
    magnitude = tf.abs(compensated)
    if tensor.is_exact:
        return tf.sort(_largest(magnitude[tf.newaxis], tensor.kept))
    body_size = tensor.full_chunks * tensor.chunk_size
    parts = []
    if tensor.full_chunks:
        chunks = tf.reshape(magnitude[:body_size], [tensor.full_chunks, tensor.chunk_size])
        parts.append(_largest(chunks, tensor.chunk_keep))
    if tensor.tail_keep:
        parts.append(_largest(magnitude[tf.newaxis, body_size:], tensor.tail_keep))
    return tf.concat(parts, axis=0)


def _largest(chunks: tf.Tensor, keep: int) -> tf.Tensor:
    if keep == 1:
        return tf.argmax(chunks, axis=1, output_type=tf.int32)
    return tf.reshape(tf.math.top_k(chunks, keep).indices, [-1])


def _to_wire(values: tf.Tensor, dtype: str) -> tf.Tensor:
    if dtype == "float16":
        values = tf.clip_by_value(values, tf.float16.min, tf.float16.max)
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
