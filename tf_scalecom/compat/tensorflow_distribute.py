"""Private parts of tf.distribute and its collectives. Looked at in TensorFlow 2.20 and 2.21."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_scalecom.compat.declared import members, parameters, symbol

_DISTRIBUTE = "tensorflow.python.distribute"

# --- Collectives ---------------------------------------------------------------------------------

_KEYS = "calls with keys of this package's own, which TensorFlow's public functions count"
all_reduce: Any = symbol("tensorflow.python.ops.collective_ops.all_reduce_v2", _KEYS)
all_gather: Any = symbol("tensorflow.python.ops.collective_ops.all_gather_v2", _KEYS)
all_to_all: Any = symbol("tensorflow.python.ops.collective_ops.all_to_all_v2", _KEYS)
broadcast_send: Any = symbol("tensorflow.python.ops.collective_ops.broadcast_send_v2", _KEYS)
broadcast_receive: Any = symbol("tensorflow.python.ops.collective_ops.broadcast_recv_v2", _KEYS)
CollectiveKeys: Any = symbol(
    f"{_DISTRIBUTE}.cross_device_utils.CollectiveKeys", "group keys, one object for all strategies"
)
CollectiveReplicaLauncher: Any = symbol(
    f"{_DISTRIBUTE}.cross_device_utils.CollectiveReplicaLauncher",
    "base of CollectiveLauncher, which strategies call for all that they reduce",
)
members(
    CollectiveReplicaLauncher,
    {
        "_group_key": "of the group it launches in",
        "_group_size": "the same",
        "_device": "where operands and results are",
        "_options": "hint and timeout for each call",
        "_ordering_token": "keeps calls on several devices from waiting for each other",
        "_all_gather": "overridden: under a key that is not counted",
        "all_reduce": "the same",
        "batch_all_reduce": "overridden: tensors of several dtypes in one call",
        "all_gather": "the same",
        "all_reduce_indexed_slices": "the same",
    },
)
group_by_size: Any = symbol(
    f"{_DISTRIBUTE}.cross_device_utils.group_by_size",
    "packs of a number of bytes, as the options' bytes_per_pack asks for",
)
device_of_host: Any = symbol(
    f"{_DISTRIBUTE}.device_util.get_host_for_device", "the CPU beside a device, for its counters"
)
sum_on_device: Any = symbol(
    f"{_DISTRIBUTE}.cross_device_utils.aggregate_tensors_or_indexed_slices",
    "sums gradients, slices among them, as TensorFlow's own reductions do",
)
CollectiveAllReduce: Any = symbol(
    f"{_DISTRIBUTE}.cross_device_ops.CollectiveAllReduce", "base of ScaleComAllReduce"
)
members(
    CollectiveAllReduce,
    {
        "_devices": "of the group's members in this process",
        "_group_size": "how many replicas exchange",
        "_options": "of the strategy, passed on to each call",
        "_collective_keys": "where group keys come from",
        "_launchers": "replaced by CollectiveLaunchers",
        "_canonicalize_devices": "for a copy",
    },
)

# --- Values of replicas --------------------------------------------------------------------------

regroup: Any = symbol(
    f"{_DISTRIBUTE}.distribute_utils.regroup", "joins values of replicas; the public way copies"
)
select_replica: Any = symbol(
    f"{_DISTRIBUTE}.distribute_utils.select_replica", "the reverse, of any structure"
)
Mirrored: Any = symbol(f"{_DISTRIBUTE}.values.Mirrored", "what regroup is to make")
PerReplica: Any = symbol(f"{_DISTRIBUTE}.values.PerReplica", "the same")

# --- The strategy --------------------------------------------------------------------------------

DefaultStrategy: Any = symbol(
    f"{_DISTRIBUTE}.distribute_lib._DefaultDistributionStrategy",
    "stands where there is no strategy; without it models made outside could not be told",
)
coordination_leader: Any = symbol(
    f"{_DISTRIBUTE}.multi_worker_util.coordination_leader",
    "the task that TensorFlow would choose for the coordination service",
)
CollectiveAllReduceExtended: Any = symbol(
    f"{_DISTRIBUTE}.collective_all_reduce_strategy.CollectiveAllReduceExtended",
    "base of the strategy's implementation",
)
members(
    CollectiveAllReduceExtended,
    {
        # Start.
        "_initialize_strategy": "overridden: TF_CONFIG is checked",
        "_initialize_local": "overridden: this package's cross-device ops",
        "_initialize_multi_worker": "overridden: workers meet first; the same ops",
        "_initialize_local_devices": "overridden: all logical CPUs train, not the first alone",
        "_std_server_started": "set where an earlier strategy has started the server",
        "_enable_check_health": "overridden: the health check that waits without end is off",
        # What it was started with.
        "_num_workers": "read",
        "_id_in_cluster": "read: this worker's rank",
        "_is_chief": "read: whose value a new variable takes",
        "_num_replicas_in_sync": "read",
        "_local_device_type": "read: whether batches stay on the host",
        "_communication_options": "replaced: without a timeout, which costs a thread a call",
        "_collective_keys": "replaced: one object for all strategies",
        "_cross_device_ops": "replaced by ScaleComAllReduce",
        "_host_cross_device_ops": "the same, between workers' CPUs",
        # Steps and variables.
        "_container_strategy": "called: the strategy of it",
        "_get_local_replica_id": "called: the place of a replica in this process",
        "_call_for_each_replica": "overridden: empty batches, XLA, Keras's loss scaling",
        "_batch_reduce_to": "overridden: without the NaN of empty batches; keys by gradient set",
        "_gather_to": "called: rows of all replicas, on each",
        "_create_variable": "overridden: variables are numbered alike on all workers",
        "_get_variable_creator_initial_value": "overridden: the first worker's value, checked",
        "_update": "overridden: a variable made outside of the scope is named",
        "_validate_colocate_with_variable": "the same",
        # Data.
        "_experimental_distribute_dataset": "overridden: an epoch ends on all workers together",
        "_distribute_datasets_from_function": "the same",
        "_input_workers_with_options": "called, to make distributed datasets",
        "_make_input_context": "the same",
    },
)

# --- Distributed datasets ------------------------------------------------------------------------

DistributedDataset: Any = symbol(
    f"{_DISTRIBUTE}.input_lib.DistributedDataset", "base of one that ends on all workers together"
)
DistributedDatasetsFromFunction: Any = symbol(
    f"{_DISTRIBUTE}.input_lib.DistributedDatasetsFromFunction", "the same"
)
_DATA = {
    "_strategy": "read: whose workers are asked",
    "_cardinality": "set where callbacks may end infinite data",
    "_enable_get_next_as_optional": "the same",
    "cardinality": "overridden: unknown, or Keras would stop by its own worker's count",
}
members(
    DistributedDataset,
    {
        **_DATA,
        "_original_dataset": "read: a batch before it is shared out",
        "_cloned_datasets": "replaced where an epoch goes on: this worker's share, from there on",
    },
)
members(DistributedDatasetsFromFunction, {**_DATA, "_datasets": "the same"})
input_library: Any = symbol(f"{_DISTRIBUTE}.input_lib", "finds the function below when it calls it")
members(
    input_library,
    {"_calculate_replicas_with_values": "wrapped: where all workers learn that data have ended"},
)
parameters(input_library, "_calculate_replicas_with_values", ["strategy"], "whose `reduce` counts")


def shares_here(dataset) -> list[tf.data.Dataset]:
    """What this worker iterates over of a distributed dataset."""
    return getattr(dataset, _name_of_shares(dataset))


@contextlib.contextmanager
def without_first(dataset, elements: int) -> Iterator[None]:
    """Inside, a distributed dataset is iterated over without this worker's first elements."""
    name, shares = _name_of_shares(dataset), shares_here(dataset)
    setattr(dataset, name, [share.skip(elements) for share in shares] if elements else shares)
    try:
        yield
    finally:
        setattr(dataset, name, shares)


def _name_of_shares(dataset):
    return "_cloned_datasets" if isinstance(dataset, DistributedDataset) else "_datasets"


def is_default(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy is TensorFlow's stand-in where there is none."""
    return isinstance(strategy, DefaultStrategy)
