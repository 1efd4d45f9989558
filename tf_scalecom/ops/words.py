"""Words of offsets, which say to all replicas what is selected: how they are packed, and read.

TensorFlow's collectives broadcast no 8- or 16-bit integers, so bytes travel as int32 words: first
all 1-byte offsets of a layout, then 2-byte, then 4-byte ones, each group little-endian and padded
with zeros to a whole word.

On a GPU TensorFlow keeps int32 in host memory, but for a few operations, and has no kernel that
pads or splits most integers. So words are int32 by name alone: what is computed is uint32 or, of
indices where there is a GPU, int64; and cut by slices.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_scalecom.wire.layout import Layout, TensorLayout

# Width of an offset in bytes -> its type.
_OFFSET_DTYPES = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32}


def pack_offsets(offsets: Sequence[tf.Tensor], layout: Layout) -> tf.Tensor:
    """Packs offsets into as few bytes as their chunks need.

    Args:
        offsets: integers [..., kept] of each compressed tensor of `layout`.
        layout: the plan.

    Returns:
        int32 [..., layout.offset_words].
    """
    words = []
    for width, members in layout.offset_groups.items():
        dtype = _OFFSET_DTYPES[width]
        parts = [tf.cast(offsets[i], dtype) for i in members]
        per_word = 4 // width
        *axes, _ = parts[0].shape
        padding = -sum(part.shape[-1] for part in parts) % per_word
        if padding:
            parts.append(tf.zeros([*axes, padding], dtype))
        group = tf.concat(parts, axis=-1)
        if per_word > 1:
            group = tf.bitcast(tf.reshape(group, [*axes, -1, per_word]), tf.uint32)
        words.append(group)
    return tf.bitcast(tf.concat(words, axis=-1), tf.int32)


def unpack_offsets(words: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
    """Inverse of `pack_offsets`: [..., kept] of each compressed tensor of `layout`.

    Their dtype is that of a small tensor's indices.
    """
    offsets: dict[int, tf.Tensor] = {}
    tensors = _tensors(layout)
    axes = words.shape[:-1].as_list()
    words = tf.bitcast(words, tf.uint32)
    first_word = 0
    for width, members in layout.offset_groups.items():
        sizes = [tensors[i].kept for i in members]
        words_here = -(-sum(sizes) * width // 4)
        group = words[..., first_word : first_word + words_here]
        first_word += words_here
        if width < 4:
            group = tf.reshape(tf.bitcast(group, _OFFSET_DTYPES[width]), [*axes, -1])
        group = tf.cast(group, _index_dtype(elements=0))
        begin = 0
        for i, size in zip(members, sizes, strict=True):
            offsets[i] = group[..., begin : begin + size]
            begin += size
    return [offsets[i] for i in range(len(tensors))]


def flat_indices(words: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
    """Indices in the flat tensors, [kept] each, of `index_dtype`."""
    indices = []
    for offsets, tensor in zip(unpack_offsets(words, layout), _tensors(layout), strict=True):
        starts = starts_of_chunks(tensor, 0, tensor.kept)
        indices.append(tf.cast(offsets, starts.dtype) + starts)
    return indices


def starts_of_chunks(tensor: TensorLayout, first: int, last: int) -> tf.Tensor:
    """Index of the first element of the chunks of kept elements [first, last)."""
    kept = tf.range(first, last, dtype=index_dtype(tensor))
    return kept // tensor.chunk_keep * tensor.chunk_size


def index_dtype(tensor: TensorLayout) -> tf.DType:
    """Of the elements of a tensor: int32; int64 past 2**31 elements, or where there is a GPU."""
    return _index_dtype(tensor.elements)


def _index_dtype(elements: int) -> tf.DType:
    is_int32 = elements <= tf.int32.max and not tf.config.list_logical_devices("GPU")
    return tf.int32 if is_int32 else tf.int64


def slices(words: tf.Tensor, reduced: tf.Tensor, layout: Layout) -> list[tf.IndexedSlices]:
    """Sums as slices of the variables as vectors, in the variables' dtypes; arguments as there."""
    tensors = _tensors(layout)
    *values, _ = tf.split(reduced, [*(t.kept for t in tensors), 1])
    return [
        tf.IndexedSlices(tf.cast(v, t.dtype), i, tf.constant([t.elements], i.dtype))
        for v, i, t in zip(values, flat_indices(words, layout), tensors, strict=True)
    ]


def _tensors(layout: Layout) -> list[TensorLayout]:
    return [layout.tensors[i] for i in layout.compressed]
