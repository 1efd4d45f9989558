"""`ScaleComAllReduce`: TensorFlow's collective all-reduce, with a CLT-k exchange beside it."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tf_scalecom.compat.tensorflow_distribute import CollectiveAllReduce, CollectiveKeys
from tf_scalecom.fit import numpy_memory
from tf_scalecom.reduction import clt_k
from tf_scalecom.wire.layout import Layout
from tf_scalecom.workers.collectives import CollectiveLauncher

# On import, as it costs nothing where it is not needed: each strategy slices what it shares out.
numpy_memory.copy_what_others_see()

# Each bucket costs two collectives, of a millisecond or two: more than smaller ones hide of the
# exchange behind the backward pass (docs/network.md, "Hiding").
BUCKET_BYTES = 512 * 1024

# Group keys of `for_devices`: clear of those that strategies count up from 1, one per instance.
_local_group_keys = itertools.count(1 << 20)


class ScaleComAllReduce(CollectiveAllReduce):
    """Cross-device operations of a strategy whose gradients travel as CLT-k.

    Plain reduce, gather and broadcast stay dense, so metrics, batch statistics and whatever else a
    strategy reduces are exact. `exchange` is the compressed reduction that `ScaleComOptimizer`
    calls.
    """

    def __init__(
        self, devices, group_size, options, collective_keys=None, canonicalize_devices=True
    ):
        super().__init__(devices, group_size, options, collective_keys, canonicalize_devices)
        group_key = self._collective_keys.get_group_key(self._devices)
        self._launchers = [
            CollectiveLauncher(group_key, group_size, self._collective_keys, device, options)
            for device in self._devices
        ]
        self._eager_exchanges = {}

    @property
    def bucket_bytes(self) -> float:
        """Payload of the tensors that are exchanged together, at least; see `Layout.buckets`."""
        return self._options.bytes_per_pack or BUCKET_BYTES

    @classmethod
    def for_devices(cls, devices: Sequence[str] | None = None) -> "ScaleComAllReduce":
        """For `tf.distribute.MirroredStrategy(devices, cross_device_ops=...)`.

        Args:
            devices: names of the devices of this process that train together, in the strategy's
                order. By default all GPUs or, without one, all CPUs.
        """
        if devices is None:
            logical = tf.config.list_logical_devices
            devices = [d.name for d in logical("GPU") or logical("CPU")]
        keys = CollectiveKeys(group_key_start=next(_local_group_keys))
        options = tf.distribute.experimental.CommunicationOptions()
        return cls(devices, len(devices), options, keys)

    def exchange(
        self,
        gradients: Sequence[Sequence[tf.Tensor]],
        layout: Layout,
        state: Sequence[Sequence[tf.Variable]],
        step: tf.Tensor,
    ) -> clt_k.Exchanged:
        """Sums gradients over all replicas, those that `layout` says as CLT-k.

        Call it in cross-replica context, on all workers in the same step.

        Args:
            gradients: [replica of this process][variable], each in the variable's shape and dtype.
            layout: the plan for these variables, the same on all workers.
            state: [replica of this process][compressed variable], the residuals: float32 variables
                in the variables' shapes. Updated in place.
            step: integer scalar, the same on all workers; the leader is step mod replicas.

        Returns:
            An `clt_k.Exchanged`: summed gradients, and whether all were finite. If not, the
            residuals are as before.
        """
        if tf.executing_eagerly() and len(self._launchers) > 1:
            # One thread runs eager operations one by one, and would wait in the first replica's
            # collective for the second's: a function runs them side by side.
            if layout not in self._eager_exchanges:
                self._eager_exchanges[layout] = tf.function(
                    lambda gradients, state, step: self._exchange(gradients, layout, state, step),
                    autograph=False,
                )
            return self._eager_exchanges[layout](gradients, state, step)
        return self._exchange(gradients, layout, state, step)

    def _exchange(self, gradients, layout, state, step):
        communicator = CollectiveCommunicator(self)
        return clt_k.exchange(gradients, state, layout, step, communicator)

    def _all_reduce(self, reduce_op, value, replica_id, options):
        # TensorFlow packs a list into one buffer, which takes one dtype.
        tensors = tf.nest.flatten(value)
        reduced = [None] * len(tensors)
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            positions = [i for i, t in enumerate(tensors) if t.dtype == dtype]
            same = [tensors[i] for i in positions]
            same = super()._all_reduce(reduce_op, same, replica_id, options)
            for i, tensor in zip(positions, same, strict=True):
                reduced[i] = tensor
        return tf.nest.pack_sequence_as(value, reduced)

    def __deepcopy__(self, memo):
        return type(self)(
            self._devices,
            self._group_size,
            self._options,
            self._collective_keys,
            self._canonicalize_devices,
        )


class CollectiveCommunicator:
    """Communicates through TensorFlow's collective runtime."""

    broadcasts = True

    def __init__(self, ops: ScaleComAllReduce):
        extended = tf.distribute.get_strategy().extended
        self._ops = ops
        self.num_replicas = ops._group_size
        self.bucket_bytes = ops.bucket_bytes
        # The members of the group in this process, which may be fewer than its replicas.
        local = len(ops._launchers)
        first = getattr(extended, "_id_in_cluster", 0) * local
        self.replica_ids = range(first, first + local)

    def all_reduce(self, tensors):
        ops = self._ops
        sum_ = tf.distribute.ReduceOp.SUM
        return [ops._all_reduce(sum_, list(ts), i, ops._options) for i, ts in enumerate(tensors)]

    def broadcast(self, make, leader, size):
        wire = _words_dtype(self._ops._devices[0])
        words = [
            launcher.broadcast(
                lambda make_vector=make_vector: tf.bitcast(make_vector(), wire),
                is_source=tf.equal(leader, replica_id),
                source_rank=leader,
                shape=[size],
                dtype=wire,
            )
            for launcher, replica_id, make_vector in zip(
                self._ops._launchers, self.replica_ids, make, strict=True
            )
        ]
        return [tf.bitcast(w, tf.int32) for w in words]


def _words_dtype(device: str) -> tf.DType:
    """What words of offsets are called on their way between devices of this kind.

    TensorFlow keeps every int32 that passes a cond on a GPU in host memory: the words would go to
    the host and back on each replica. As the bits of a float32 they stay in device memory; nothing
    computes with them on the way.
    """
    return tf.float32 if tf.DeviceSpec.from_string(device).device_type == "GPU" else tf.int32
