"""What CLT-k would be if somebody else than the leader chose. For comparison, in simulations."""

import dataclasses

import tensorflow as tf

from tf_scalecom.compat.tensorflow_runtime import ResourceVariable
from tf_scalecom.reduction import MethodOptions
from tf_scalecom.reduction.clt_k import Bucket, CltK
from tf_scalecom.wire.config import CompressionConfig
from tf_scalecom.wire.layout import TensorLayout
from tf_scalecom.wire.report import bytes_ratio, ring_factor


class _ChosenForAll(CltK):
    """Selects, by the same kernels, the largest elements of something that is alike on all."""

    def __init__(self, config: CompressionConfig):
        super().__init__(config)
        self._zeros: dict[tuple, tf.Variable] = {}  # by position and shape

    def _ranked_by_sum(self, tensors, bucket, communicator):
        sums = communicator.all_reduce(tensors)
        return [self._without_residual(own, bucket) for own in sums]

    def _without_residual(self, tensors, bucket):
        shapes = [bucket.layout.tensors[i].shape for i in bucket.layout.compressed]
        return tensors, [
            self._zero(position, shape)
            for position, shape in zip(bucket.compressed, shapes, strict=True)
        ]

    def _zero(self, *of_variable):
        """Zeros of a variable's position and shape; the kernels take each residual once."""
        if of_variable not in self._zeros:
            with tf.init_scope():  # in a strategy's scope, too, one plain variable
                self._zeros[of_variable] = ResourceVariable(tf.zeros(of_variable[1]))
        return self._zeros[of_variable]


class MeanTopK(_ChosenForAll):
    """The oracle: it knows the sum of all replicas' compensated gradients beforehand.

    Its bytes are those of CLT-k, at which no real method could have that knowledge.
    """

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(options.compression)

    def _ranked(self, bucket, step, communicator):
        return self._ranked_by_sum(_compensated(bucket), bucket, communicator)


class SharesTopK(_ChosenForAll):
    """Every replica leads a share of the chunks: in step t chunk c is led by (t + c) mod n.

    Its bytes are those of CLT-k: each replica's share of the offsets goes to all others. Here
    they come from a sum of what each leads, as where else they come from matters to nobody.
    """

    bounded = False  # the bound is about one leader's choice

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(options.compression)

    def _ranked(self, bucket, step, communicator):
        tensors = [bucket.layout.tensors[i] for i in bucket.layout.compressed]
        n = communicator.num_replicas
        led = []
        for replica, own in zip(communicator.replica_ids, _compensated(bucket), strict=True):
            first = tf.cast((tf.cast(replica, step.dtype) - step) % n, tf.int32)
            led.append(
                [
                    tf.where(_chunks(tensor) % n == first, value, tf.zeros_like(value))
                    for tensor, value in zip(tensors, own, strict=True)
                ]
            )
        return self._ranked_by_sum(led, bucket, communicator)


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
        return [self._without_residual(numbers, bucket)] * len(bucket.gradients)

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


def _compensated(bucket: Bucket) -> list[list[tf.Tensor]]:
    """[replica][compressed variable], gradient + residual."""
    return [
        [tf.cast(g, tf.float32) + m for g, m in zip(gradients, residuals, strict=True)]
        for gradients, residuals in zip(bucket.gradients, bucket.residuals, strict=True)
    ]


def _chunks(tensor: TensorLayout) -> tf.Tensor:
    """The number of each element's chunk, in the tensor's shape."""
    return tf.reshape(tf.range(tensor.elements) // tensor.chunk_size, tensor.shape)
