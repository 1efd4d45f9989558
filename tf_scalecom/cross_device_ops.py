"""`ScaleComAllReduce`: TensorFlow's collective all-reduce, with a CLT-k exchange beside it."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tf_scalecom.compat.tensorflow_distribute import CollectiveAllReduce, CollectiveKeys
from tf_scalecom.fit import numpy_memory
from tf_scalecom.reduction.clt_k import CltK
from tf_scalecom.reduction.communicator import CollectiveCommunicator
from tf_scalecom.reduction.exchange import Exchanged, exchange
from tf_scalecom.reduction.method import Method
from tf_scalecom.update import keras_hooks
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.plan import Plan
from tf_scalecom.wire.route import BUCKET_BYTES
from tf_scalecom.workers.collectives import CollectiveLauncher

# On import, as it costs nothing where it is not needed: each strategy slices what it shares out.
numpy_memory.copy_what_others_see()

# Group keys of `for_devices`: clear of those that strategies count up from 1, one per instance.
_local_group_keys = itertools.count(1 << 20)


# What users give `exchange` is a plan already: the method's own arguments do not count.
_CLT_K = CltK()


class ScaleComAllReduce(CollectiveAllReduce):
    """Cross-device operations of a strategy whose gradients travel as CLT-k.

    Plain reduce, gather and broadcast stay dense, so metrics, batch statistics and whatever else a
    strategy reduces are exact. `exchange` is the compressed reduction that `ScaleComOptimizer`
    calls.

    Args:
        devices, group_size, options, collective_keys, canonicalize_devices: as of
            `CollectiveAllReduce`.
        first_replica: the place, among all of the group, of this process's first device.
    """

    def __init__(
        self,
        devices,
        group_size,
        options,
        collective_keys=None,
        canonicalize_devices=True,
        first_replica=0,
    ):
        super().__init__(devices, group_size, options, collective_keys, canonicalize_devices)
        self._first_replica = first_replica
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
        keras_hooks.install()
        if devices is None:
            logical = tf.config.list_logical_devices
            devices = [d.name for d in logical("GPU") or logical("CPU")]
        keys = CollectiveKeys(group_key_start=next(_local_group_keys))
        options = tf.distribute.experimental.CommunicationOptions()
        return cls(devices, len(devices), options, keys)

    @tf.autograph.experimental.do_not_convert
    def exchange(
        self,
        gradients: Sequence[Sequence[tf.Tensor]],
        layout: Plan,
        state: Sequence[Sequence[tf.Variable]],
        step: tf.Tensor,
        method: Method | None = None,
        as_slices: bool = False,
    ) -> Exchanged:
        """Sums gradients over all replicas, those that `layout` says as CLT-k.

        Call it in cross-replica context, on all workers in the same step.

        Args:
            gradients: [replica of this process][variable], each in the variable's shape and dtype.
            layout: the plan for these variables, the same on all workers.
            state: [replica of this process][compressed variable], the residuals: float32 variables
                in the variables' shapes. Updated in place.
            step: integer scalar, the same on all workers; the leader is step mod replicas.
            method: another method than CLT-k, whose plan and state the others are.
            as_slices: whether sums of compressed variables may come as `tf.IndexedSlices` of the
                variables as vectors.

        Returns:
            An `Exchanged`: summed gradients, and whether all were finite. If not, the state is as
            before.

        Raises:
            ValueError: a plan of another method, without that.
        """
        if method is None and not isinstance(layout, Layout):
            raise ValueError(
                "ScaleComAllReduce.exchange: expected a Layout, which is CLT-k's plan; received a "
                f"{type(layout).__name__}. Give the method that has made it, too: `method=...`."
            )
        method = method or _CLT_K
        if tf.executing_eagerly() and len(self._launchers) > 1:
            # One thread runs eager operations one by one, and would wait in the first replica's
            # collective for the second's: a function runs them side by side.
            return self._eager_exchange(layout, method, as_slices)(gradients, state, step)
        return self._exchange(gradients, layout, state, step, method, as_slices)

    def sum(self, tensors: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """Dense sums of [replica of this process][tensor], in the same structure."""
        return self._communicator().all_reduce(tensors)

    def _eager_exchange(self, layout, method, as_slices):
        key = (layout, method, as_slices)
        if key not in self._eager_exchanges:
            self._eager_exchanges[key] = tf.function(
                lambda gradients, state, step: self._exchange(
                    gradients, layout, state, step, method, as_slices
                ),
                autograph=False,
            )
        return self._eager_exchanges[key]

    def _exchange(self, gradients, layout, state, step, method, as_slices):
        return exchange(gradients, layout, state, step, self._communicator(), method, as_slices)

    def _communicator(self):
        return CollectiveCommunicator(
            self._launchers, self._first_replica, self._group_size, self.bucket_bytes
        )

    def __deepcopy__(self, memo):
        return type(self)(
            self._devices,
            self._group_size,
            self._options,
            self._collective_keys,
            self._canonicalize_devices,
            self._first_replica,
        )
