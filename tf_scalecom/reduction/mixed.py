"""CLT-k among replicas that make their residuals alike now and then. In simulations, so far.

Every K steps replica i of n, with residual m_i, adds to its gradient

    d_i = sum_j P(m_j) / n - P(m_i)

P(m) is a picture of m in few bits: of each chunk one magnitude, and a sign or nothing for each
element. The d_i add up to nothing, so that the sum of all residuals is what it was; each replica's
own is nearer to the mean, and its choice, when it leads, nearer to that of the sum.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from tf_scalecom.reduction import MethodOptions
from tf_scalecom.reduction.clt_k import CltK
from tf_scalecom.wire.config import CompressionConfig
from tf_scalecom.wire.layout import TensorLayout
from tf_scalecom.wire.report import bytes_ratio

# Of a magnitude on the wire; and of an element of a picture, by its levels: a bit, or a fifth of a
# byte, as five of three levels are 243.
_MAGNITUDE_BYTES = 2
_ELEMENT_BYTES = {2: 1 / 8, 3: 1 / 5}
# Of a chunk's mean magnitude: what is below is nothing in a picture of three levels, which so has
# about the least error that one of a normal distribution can have.
_NOTHING_BELOW = 0.7


class MixedTopK(CltK):
    """CLT-k with mixing. The pictures go to all by an all-gather; here their sum comes dense.

    Args:
        config: what to send.
        every: K, steps from one mixing to the next.
        levels: 2, the signs; 3, the signs of what is large.
    """

    bounded = False  # the bound is about a choice by the residuals as they are

    def __init__(self, config: CompressionConfig, every: int, levels: int):
        super().__init__(config)
        self._every = every
        self._levels = levels

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(options.compression, options.mix_every, options.mix_levels)

    def propose(self, gradients, plan, state, step, communicator):
        tensors = [plan.tensors[i] for i in plan.compressed]
        pictures = [
            [picture(m, tensor, self._levels) for m, tensor in zip(own, tensors, strict=True)]
            for own in state
        ]
        sums = communicator.all_reduce(pictures)
        mixes = tf.cast(step % self._every == 0, tf.float32)
        mixed = []
        for own, own_pictures, own_sums in zip(gradients, pictures, sums, strict=True):
            own = list(own)
            for i, mine, total in zip(plan.compressed, own_pictures, own_sums, strict=True):
                towards_mean = mixes * (total / communicator.num_replicas - mine)
                own[i] += tf.cast(towards_mean, own[i].dtype)
            mixed.append(own)
        return super().propose(mixed, plan, state, step, communicator)

    def report(self, plan, num_replicas, route):
        """A ring all-gather passes on the pictures of all others."""
        report = super().report(plan, num_replicas, route)
        rows = []
        for row, tensor in zip(report.rows, plan.tensors, strict=True):
            if not tensor.is_dense:
                picture_bytes = _ELEMENT_BYTES[self._levels] * tensor.elements
                picture_bytes += _MAGNITUDE_BYTES * _chunks(tensor)
                sent = row.bytes_sent + (num_replicas - 1) * picture_bytes / self._every
                ratio = bytes_ratio(row.bytes_dense, sent)
                row = dataclasses.replace(row, bytes_sent=sent, ratio=ratio)
            rows.append(row)
        before = sum(row.bytes_sent for row in report.rows)
        sent = report.bytes_sent + sum(row.bytes_sent for row in rows) - before
        return dataclasses.replace(report, rows=tuple(rows), bytes_sent=sent)


def picture(residual: tf.Tensor, tensor: TensorLayout, levels: int) -> tf.Tensor:
    """P of a residual, float32 in the tensor's shape."""
    count, size = _chunks(tensor), tensor.chunk_size
    padded = tf.pad(tf.reshape(residual, [-1]), [[0, count * size - tensor.elements]])
    chunks = tf.reshape(padded, [count, size])
    sizes = np.minimum(size, tensor.elements - size * np.arange(count)).astype(np.float32)
    magnitudes = tf.abs(chunks)
    mean = tf.reduce_sum(magnitudes, axis=1) / sizes
    signs = tf.where(chunks < 0, -1.0, 1.0)
    if levels == 3:
        is_large = tf.cast(magnitudes > _NOTHING_BELOW * mean[:, tf.newaxis], tf.float32)
        mean = tf.math.divide_no_nan(
            tf.reduce_sum(magnitudes * is_large, axis=1), tf.reduce_sum(is_large, axis=1)
        )
        signs *= is_large
    elements = tf.reshape(signs * mean[:, tf.newaxis], [-1])[: tensor.elements]
    return tf.reshape(elements, tensor.shape)


def _chunks(tensor):
    return -(-tensor.elements // tensor.chunk_size)
