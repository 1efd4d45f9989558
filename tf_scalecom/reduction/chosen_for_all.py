"""What CLT-k would be if somebody else than the leader chose. For comparison, in simulations."""

import abc
from collections.abc import Sequence

import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.compat.tensorflow_runtime import ResourceVariable
from tf_scalecom.reduction import MethodOptions
from tf_scalecom.reduction.clt_k import Bucket, CltK, leading
from tf_scalecom.reduction.communicator import Communicator
from tf_scalecom.wire.report import ring_factor


class _ChosenForAll(CltK):
    """Selects, by the same kernels, the largest elements of something that is alike on all."""

    def __init__(self, **what_to_send):
        super().__init__(**what_to_send)
        self._zeros: dict[tuple, tf.Variable] = {}  # by position and shape

    @abc.abstractmethod
    def _ranked(
        self,
        bucket: Bucket,
        compensated: Sequence[Sequence[tf.Tensor]],
        step: tf.Tensor,
        communicator: Communicator,
    ) -> Sequence[Sequence[tf.Tensor]]:
        """What is ranked, [replica][compressed variable]; it counts where the replica leads.

        Args:
            bucket: what is exchanged.
            compensated: residual + gradient, [replica][compressed variable].
            step: integer scalar.
            communicator: joins the replicas.
        """

    def _who_selects(self, step, communicator):
        return [False for _ in communicator.replica_ids]

    def _agreed(self, bucket, compensated, step, communicator):
        layout = bucket.layout
        ranked = self._ranked(bucket, [own.values for own in compensated], step, communicator)
        zeros = [
            self._zero(position, layout.tensors[i].shape)
            for position, i in zip(bucket.compressed, layout.compressed, strict=True)
        ]
        kernels = ops.kernels_for(layout)
        chosen = [
            kernels.compensate(own, zeros, leads, layout)
            for own, leads in zip(ranked, leading(step, communicator), strict=True)
        ]
        _, words = super()._agreed(bucket, chosen, step, communicator)
        return compensated, words

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

    def _ranked(self, bucket, compensated, step, communicator):
        return communicator.all_reduce(compensated)


class _DrawnForAll(_ChosenForAll):
    """With numbers at random, the same on all replicas by a seed that they share.

    So nobody sends offsets.
    """

    bounded = False

    def __init__(self, seed: int = 0, **what_to_send):
        super().__init__(**what_to_send)
        self._seed = seed

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(options.seed, **options.compression.get_config())

    def _drawn(self, bucket, step):
        """In [0, 1), new in each step, in the shape of each compressed variable."""
        return [
            tf.random.stateless_uniform(
                bucket.layout.tensors[i].shape,
                tf.stack([self._seed, tf.cast(step, tf.int64) * 2**16 + position]),
            )
            for i, position in zip(bucket.layout.compressed, bucket.compressed, strict=True)
        ]

    def report(self, plan, num_replicas, route):
        offsets = ring_factor(num_replicas) / (2 if route.broadcasts else 1)
        buckets = map(plan.subset, plan.buckets(route.bucket_bytes))
        words = sum(bucket.offset_words for bucket in buckets)
        travelling = {
            i: plan.tensors[i].kept * plan.tensors[i].offset_bytes for i in plan.compressed
        }
        padding = 4 * words - sum(travelling.values())
        return (
            super()
            .report(plan, num_replicas, route)
            .with_more({i: -offsets * size for i, size in travelling.items()}, -offsets * padding)
        )


class RandomK(_DrawnForAll):
    """Elements at random, without replacement."""

    def _ranked(self, bucket, compensated, step, communicator):
        return [self._drawn(bucket, step)] * len(compensated)


class SketchTopK(_DrawnForAll):
    """Of each chunk the block that is largest in a sketch of the sum, whole. After ARC-Top-K.

    A block has as many elements as are kept of a chunk. With a sign drawn for each element, each
    replica sums its signed compensated gradient over each block; those sums, over all replicas, are
    the sketch. They travel as bfloat16.
    """

    def _ranked(self, bucket, compensated, step, communicator):
        tensors = [bucket.layout.tensors[i] for i in bucket.layout.compressed]
        signs = [tf.where(drawn < 0.5, -1.0, 1.0) for drawn in self._drawn(bucket, step)]
        sketches = communicator.all_reduce(
            [
                [
                    _block_sums(sign * p, tensor)
                    for sign, p, tensor in zip(signs, own, tensors, strict=True)
                ]
                for own in compensated
            ]
        )
        return [
            [
                tf.reshape(tf.repeat(sums, tensor.chunk_keep)[: tensor.elements], tensor.shape)
                for sums, tensor in zip(own, tensors, strict=True)
            ]
            for own in sketches
        ]

    def report(self, plan, num_replicas, route):
        ring = ring_factor(num_replicas)
        return (
            super()
            .report(plan, num_replicas, route)
            .with_more({i: 2 * ring * _block_count(plan.tensors[i]) for i in plan.compressed})
        )


def _block_sums(values, tensor):
    count, size = _block_count(tensor), tensor.chunk_keep
    padded = tf.pad(tf.reshape(values, [-1]), [[0, count * size - tensor.elements]])
    sums = tf.reduce_sum(tf.reshape(padded, [count, size]), axis=1)
    return tf.cast(tf.cast(sums, tf.bfloat16), tf.float32)


def _block_count(tensor):
    return -(-tensor.elements // tensor.chunk_keep)
