"""What CLT-k would be if somebody else than the leader chose. For comparison, in simulations."""

import dataclasses

import tensorflow as tf

from tf_scalecom.compat.tensorflow_runtime import ResourceVariable
from tf_scalecom.reduction import MethodOptions
from tf_scalecom.reduction.clt_k import CltK
from tf_scalecom.wire.config import CompressionConfig
from tf_scalecom.wire.report import bytes_ratio, ring_factor


class _ChosenForAll(CltK):
    """Selects, by the same kernels, the largest elements of something that is alike on all."""

    def __init__(self, config: CompressionConfig):
        super().__init__(config)
        self._zeros: dict[tuple[int, ...], tf.Variable] = {}  # by shape

    def _without_residual(self, tensors, layout):
        return tensors, [self._zero(layout.tensors[i].shape) for i in layout.compressed]

    def _zero(self, shape):
        if shape not in self._zeros:
            with tf.init_scope():  # in a strategy's scope, too, one plain variable
                self._zeros[shape] = ResourceVariable(tf.zeros(shape))
        return self._zeros[shape]


class MeanTopK(_ChosenForAll):
    """The oracle: it knows the sum of all replicas' compensated gradients beforehand.

    It selects exactly. Its bytes are those of CLT-k, at which no real method could have that
    knowledge.
    """

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(dataclasses.replace(options.compression, selection="exact"))

    def _ranked(self, bucket, step, communicator):
        compensated = [
            [tf.cast(g, tf.float32) + m for g, m in zip(gradients, residuals, strict=True)]
            for gradients, residuals in zip(bucket.gradients, bucket.residuals, strict=True)
        ]
        sums = communicator.all_reduce(compensated)
        return [self._without_residual(tensors, bucket.layout) for tensors in sums]


class RandomK(_ChosenForAll):
    """Elements at random, without replacement; no offsets travel, as all share a seed."""

    bounded = False

    def __init__(self, config: CompressionConfig, seed: int):
        super().__init__(config)
        self._seed = seed

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(options.compression, options.seed)

    def _ranked(self, bucket, step, communicator):
        numbers = [
            tf.random.stateless_uniform(
                bucket.layout.tensors[i].shape,
                tf.stack([self._seed, tf.cast(step, tf.int64) * 2**16 + position]),
            )
            for i, position in zip(bucket.layout.compressed, bucket.compressed, strict=True)
        ]
        return [self._without_residual(numbers, bucket.layout)] * len(bucket.gradients)

    def report(self, plan, num_replicas, route):
        report = super().report(plan, num_replicas, route)
        offsets = ring_factor(num_replicas) / (2 if route.broadcasts else 1)
        rows = []
        for row, tensor in zip(report.rows, plan.tensors, strict=True):
            sent = row.bytes_sent - tensor.kept * tensor.offset_bytes * offsets
            ratio = bytes_ratio(row.bytes_dense, sent)
            rows.append(dataclasses.replace(row, bytes_sent=sent, ratio=ratio))
        buckets = map(plan.subset, plan.buckets(route.bucket_bytes))
        words = sum(bucket.offset_words for bucket in buckets)
        return dataclasses.replace(
            report, rows=tuple(rows), bytes_sent=report.bytes_sent - 4 * words * offsets
        )
