"""Hierarchical exchange: dense inside a worker, compressed between workers.

The replicas of a worker sum their gradients first. What is a replica to the exchange, with a
residual and its turn as leader, is then the worker.
"""

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tf_scalecom.compat.tensorflow_distribute import sum_on_device
from tf_scalecom.compat.tensorflow_runtime import ResourceVariable
from tf_scalecom.reduction.exchange import Exchanged
from tf_scalecom.reduction.method import Gradient, Method
from tf_scalecom.wire.plan import Plan


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Raises unless variables can be created here and exchanged between workers.

    Raises:
        ValueError: the strategy knows no workers, or it is a replica that asks.
    """
    if not hasattr(strategy.extended, "worker_cross_device_ops"):
        raise ValueError(
            "ScaleComOptimizer(hierarchical=True): expected "
            f"tf_scalecom.MultiWorkerMirroredStrategy; received {type(strategy).__name__}. "
            "Elsewhere leave `hierarchical` out."
        )
    if not tf.distribute.in_cross_replica_context() and len(strategy.extended.worker_devices) > 1:
        raise ValueError(
            "ScaleComOptimizer(hierarchical=True): expected to be built in cross-replica context; "
            "received its first gradients in a replica. Call "
            "`optimizer.build(model.trainable_variables)` in `strategy.scope()` before."
        )


@contextlib.contextmanager
def variables_of_worker(extended) -> Iterator[None]:
    """Variables created inside are plain ones on the worker's first device, not mirrored."""

    def create(next_creator, initial_value=None, **kwargs):
        wanted = ("dtype", "trainable", "name", "shape")
        with tf.init_scope(), tf.device(extended.worker_devices[0]):
            return ResourceVariable(initial_value, **{key: kwargs.get(key) for key in wanted})

    with tf.variable_creator_scope(create):
        yield


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Those that exchange, each for all of its replicas."""
    return strategy.extended._num_workers


def worker(strategy: tf.distribute.Strategy) -> int:
    """The number of this one."""
    return strategy.extended._id_in_cluster


def _sum_inside(gradients, local_cross_device_ops) -> list[Gradient]:
    """The sums of a worker's replicas, on its first device.

    Between GPUs by NCCL, which keeps all links busy; elsewhere the first device reads all, as it
    does where one thread runs operations one by one.
    """
    if local_cross_device_ops is None or tf.executing_eagerly():
        return [sum_on_device(parts) for parts in zip(*gradients, strict=True)]
    sums = local_cross_device_ops.sum(gradients)
    # The exchange between workers waits for all: NCCL's two groups must not meet on a GPU in one
    # order here and in another there.
    with tf.control_dependencies(tf.nest.flatten(sums, expand_composites=True)):
        return tf.nest.map_structure(tf.identity, sums[0], expand_composites=True)


def exchange(
    gradients: Sequence[Sequence[Gradient]],
    plan: Plan,
    state: Sequence[Sequence[tf.Variable]],
    step: tf.Tensor,
    extended,
    method: Method,
    as_slices: bool,
) -> Exchanged:
    """As `reduction.exchange.exchange`, between workers.

    Args:
        gradients: [replica of this process][variable].
        plan, step, method, as_slices: as there.
        state: [0], this worker's.
        extended: that of `MultiWorkerMirroredStrategy`.
    """
    devices = extended.worker_devices
    with tf.device(devices[0]):
        summed = _sum_inside(gradients, extended.local_cross_device_ops)
    if extended._num_workers == 1:
        plan = plan.without_compression()
    ops = extended.worker_cross_device_ops
    (reduced,), (finite,) = ops.exchange([summed], plan, state, step, method, as_slices)
    copies = []
    for device in devices:
        with tf.device(device):
            copies.append(
                tf.nest.map_structure(tf.identity, (reduced, finite), expand_composites=True)
            )
    return Exchanged(*map(list, zip(*copies, strict=True)))
