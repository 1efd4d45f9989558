"""Selection on one flat tensor: which elements are kept, and how their positions travel.

Positions are offsets inside a chunk on the wire (1, 2 or 4 bytes each) and indices in the flat
tensor everywhere else. Within a chunk the kept elements are ordered by falling magnitude; among
equal magnitudes the lowest offset comes first.
"""

import tensorflow as tf

from tf_scalecom.layout import Layout, TensorLayout


def select_offsets(compensated: tf.Tensor, tensor: TensorLayout) -> tf.Tensor:
    """Offsets of the largest |compensated| of each chunk.

    Args:
      compensated: float32 [elements], residual + gradient.
      tensor: plan of the tensor.

    Returns:
      int32 [kept], chunk by chunk. In range even where compensated is not finite.
    """
    magnitude = tf.abs(compensated)
    body_size = tensor.full_chunks * tensor.chunk_size
    parts = []
    if tensor.full_chunks:
        chunks = tf.reshape(magnitude[:body_size], [tensor.full_chunks, tensor.chunk_size])
        parts.append(_largest(chunks, tensor.chunk_keep))
    if tensor.tail_keep:
        parts.append(_largest(magnitude[tf.newaxis, body_size:], tensor.tail_keep))
    return tf.concat(parts, axis=0)


def flat_indices(offsets: tf.Tensor, tensor: TensorLayout) -> tf.Tensor:
    """Indices in the flat tensor of `offsets`, int32 or, past 2**31 elements, int64 [kept]."""
    dtype = tf.int32 if tensor.elements <= tf.int32.max else tf.int64
    body = tensor.full_chunks * tensor.chunk_keep
    starts = tf.range(tensor.full_chunks, dtype=dtype) * tensor.chunk_size
    starts = tf.repeat(starts, tensor.chunk_keep) if tensor.chunk_keep > 1 else starts
    tail_start = tf.fill([tensor.tail_keep], tensor.full_chunks * tensor.chunk_size)
    starts = tf.concat([starts, tf.cast(tail_start, dtype)], axis=0)
    return tf.cast(tf.ensure_shape(offsets, [body + tensor.tail_keep]), dtype) + starts


def packed_size(layout: Layout) -> int:
    """Number of int32 words that the offsets of a layout's compressed tensors take."""
    return sum(-(-_kept(layout, width) * width // 4) for width in (1, 2, 4))


def pack_offsets(offsets: list[tf.Tensor], layout: Layout) -> tf.Tensor:
    """Packs offsets into as few bytes as their chunks need.

    TensorFlow's collectives broadcast no 8- or 16-bit integers, so bytes travel as int32 words.

    Args:
      offsets: one int32 [kept] per compressed tensor of `layout`.
      layout: the plan.

    Returns:
      int32 [packed_size(layout)]: first all 1-byte offsets, then 2-byte, then 4-byte ones, each
      group padded with zeros to a whole word.
    """
    words = []
    for width, dtype in ((1, tf.uint8), (2, tf.uint16), (4, tf.int32)):
        group = [o for o, t in zip(offsets, _compressed(layout), strict=True)
                 if t.offset_bytes == width]
        if group:
            narrow = tf.cast(tf.concat(group, axis=0), dtype)
            per_word = 4 // width
            if per_word > 1:
                narrow = tf.pad(narrow, [[0, -_kept(layout, width) % per_word]])
                narrow = tf.bitcast(tf.reshape(narrow, [-1, per_word]), tf.int32)
            words.append(narrow)
    return tf.concat(words, axis=0)


def unpack_offsets(words: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
    """Inverse of `pack_offsets`: one int32 [kept] per compressed tensor of `layout`."""
    offsets: dict[int, tf.Tensor] = {}
    start = 0
    for width, dtype in ((1, tf.uint8), (2, tf.uint16), (4, tf.int32)):
        members = [(i, t.kept) for i, t in enumerate(_compressed(layout))
                   if t.offset_bytes == width]
        if not members:
            continue
        kept = sum(k for _, k in members)
        size = -(-kept * width // 4)
        narrow = words[start : start + size]
        start += size
        if width < 4:
            narrow = tf.reshape(tf.bitcast(narrow, dtype), [-1])[:kept]
        parts = tf.split(tf.cast(narrow, tf.int32), [k for _, k in members])
        offsets.update(zip((i for i, _ in members), parts, strict=True))
    return [offsets[i] for i in range(len(offsets))]


def _largest(chunks: tf.Tensor, keep: int) -> tf.Tensor:
    if keep == 1:
        return tf.argmax(chunks, axis=1, output_type=tf.int32)
    return tf.reshape(tf.math.top_k(chunks, keep).indices, [-1])


def _compressed(layout: Layout) -> list[TensorLayout]:
    return [layout.tensors[i] for i in layout.compressed]


def _kept(layout: Layout, width: int) -> int:
    return sum(t.kept for t in _compressed(layout) if t.offset_bytes == width)
