"""Pictures of residuals, in a fraction of their bytes, which replicas show each other."""

import dataclasses

import numpy as np
import tensorflow as tf

from tf_scalecom.reduction import MethodOptions
from tf_scalecom.wire.layout import TensorLayout

# Values and magnitudes travel as bfloat16.
_VALUE_BYTES = 2
# Of an element: a bit for its sign, or a fifth of a byte, as five of three levels are 243.
_SIGN_BYTES = {"signs": 1 / 8, "large_signs": 1 / 5}
# Of a chunk's mean magnitude: what is below is not large, and the picture has about the least error
# that one of a normal distribution can have.
_LARGE = 0.7


@dataclasses.dataclass(frozen=True)
class ResidualPictures:
    """What is in them, and when they are shown.

    Attributes:
        kind: of each chunk "signs", with one magnitude; "large_signs", the same of what is large;
            or "largest", its largest element.
        every: steps from one picture to the next.
    """

    kind: str
    every: int

    @classmethod
    def from_options(cls, options: MethodOptions):
        """As a user has asked for."""
        return cls(options.picture, options.picture_every)

    def picture(self, residual: tf.Tensor, tensor: TensorLayout) -> tf.Tensor:
        """What the others see of a residual, float32 in the tensor's shape."""
        count, size = chunk_count(tensor), tensor.chunk_size
        padded = tf.pad(tf.reshape(residual, [-1]), [[0, count * size - tensor.elements]])
        chunks = tf.reshape(padded, [count, size])
        if self.kind == "largest":
            largest = tf.argmax(tf.abs(chunks), axis=1)[:, tf.newaxis]
            shown = tf.where(tf.range(size, dtype=tf.int64) == largest, chunks, 0.0)
        else:
            shown = self._signs(chunks, tensor)
        shown = tf.cast(tf.cast(shown, tf.bfloat16), tf.float32)  # as it is on the wire
        return tf.reshape(tf.reshape(shown, [-1])[: tensor.elements], tensor.shape)

    def bytes_per_step(self, tensor: TensorLayout) -> float:
        """Of one replica's pictures of one variable."""
        of_chunk = _VALUE_BYTES
        if self.kind == "largest":
            of_chunk += tensor.offset_bytes
        of_element = _SIGN_BYTES.get(self.kind, 0)
        return (of_chunk * chunk_count(tensor) + of_element * tensor.elements) / self.every

    def _signs(self, chunks, tensor):
        count, size = chunks.shape
        sizes = np.minimum(size, tensor.elements - size * np.arange(count)).astype(np.float32)
        magnitudes = tf.abs(chunks)
        mean = tf.reduce_sum(magnitudes, axis=1) / sizes
        signs = tf.where(chunks < 0, -1.0, 1.0)
        if self.kind == "large_signs":
            is_large = tf.cast(magnitudes > _LARGE * mean[:, tf.newaxis], tf.float32)
            mean = tf.math.divide_no_nan(
                tf.reduce_sum(magnitudes * is_large, axis=1), tf.reduce_sum(is_large, axis=1)
            )
            signs *= is_large
        return signs * mean[:, tf.newaxis]


def chunk_count(tensor: TensorLayout) -> int:
    """Chunks of a variable, the last of which may be shorter."""
    return -(-tensor.elements // tensor.chunk_size)
