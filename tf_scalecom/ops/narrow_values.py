"""Values that travel in fewer than 32 bits: how they are rounded, and packed into int32 words.

A dtype of small range travels with a scale, a power of two: small gradients lose no bits, and large
ones fit.
"""

import tensorflow as tf

from tf_scalecom.wire.dtypes import DTYPES

_EXPONENT = 0x7F800000  # of the bits of a float32
_LEAST_NORMAL = 2.0**-126


def pack_values(values: tf.Tensor, dtype: str) -> tf.Tensor:
    """Rounds values and packs them, each row with a scale of its own if the dtype has one.

    Args:
        values: [..., size], float32 or of the dtype; a multiple of what a word holds.
        dtype: a narrow one.

    Returns:
        int32 [..., words_of_values(size, dtype)].
    """
    before = []
    if DTYPES[dtype].is_scaled:
        scale = scale_for(tf.reduce_max(tf.abs(values), axis=-1, keepdims=True), dtype)
        before, values = [tf.bitcast(scale, tf.int32)], narrowed(values, scale, dtype)
    *axes, size = values.shape
    per_word = 4 // DTYPES[dtype].bytes
    values = tf.cast(values, dtype)
    words = tf.bitcast(tf.reshape(values, [*axes, size // per_word, per_word]), tf.int32)
    return tf.concat([*before, words], axis=-1)


def unpack_values(words: tf.Tensor, dtype: str) -> tf.Tensor:
    """Inverse of `pack_values`, but for what rounding took: float32 [..., size]."""
    scale = None
    if DTYPES[dtype].is_scaled:
        scale, words = tf.bitcast(words[..., :1], tf.float32), words[..., 1:]
    *axes, size = words.shape
    values = tf.reshape(tf.bitcast(words, dtype), [*axes, size * (4 // DTYPES[dtype].bytes)])
    values = tf.cast(values, tf.float32)
    return values if scale is None else values * scale


def scale_for(bound: tf.Tensor, dtype: str) -> tf.Tensor:
    """The power of two by which values of a magnitude are divided, before they are narrowed.

    Args:
        bound: float32, the largest magnitude; nothing is too large or too small.
        dtype: a scaled one.

    Returns:
        float32, as `bound`; infinite where that is not finite, and then values times it, zeros
        too, are not finite either.
    """
    power = tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(bound, tf.int32), _EXPONENT), tf.float32)
    shift = 2 / DTYPES[dtype].scaled_below
    return tf.maximum(power, _LEAST_NORMAL / shift) * shift


def narrowed(values: tf.Tensor, scale: tf.Tensor, dtype: str) -> tf.Tensor:
    """Values over a scale in a scaled dtype, to the nearest; some number where not finite."""
    scaled = values / scale
    if tf.as_dtype(dtype).is_integer:
        most = DTYPES[dtype].scaled_below - 1
        scaled = tf.where(tf.math.is_finite(scaled), scaled, 0.0)
        scaled = tf.clip_by_value(tf.round(scaled), -most, most)
    return tf.cast(scaled, dtype)
