"""How `MultiWorkerMirroredStrategy` does its work: TensorFlow's way, with repairs."""

import contextlib
import copy
import itertools
import weakref

import keras
import tensorflow as tf

from tf_scalecom.compat import tensorflow_distribute
from tf_scalecom.compat.keras_calls import path_of_new_variable
from tf_scalecom.compat.tensorflow_distribute import CollectiveKeys, regroup
from tf_scalecom.compat.tensorflow_runtime import (
    CheckpointInitialValue,
    CoordinatedJob,
    compiled_by_xla,
    eager_context,
    joining_with_threads,
    runtime_has_started,
    server_has_started,
)
from tf_scalecom.cross_device_ops import ScaleComAllReduce
from tf_scalecom.fit import (
    asked_to_end,
    cache_files,
    empty_batches,
    epochs,
    made_alone,
    made_in_scope,
    shared_seed,
)
from tf_scalecom.fit.alike_data import in_one_order
from tf_scalecom.fit.step_count import StepCount
from tf_scalecom.state import model_files
from tf_scalecom.update import gradient_sets, keras_hooks
from tf_scalecom.update.skip_warning import SkipWarning
from tf_scalecom.version import __version__
from tf_scalecom.workers import cluster as cluster_lib
from tf_scalecom.workers import forked_processes, proxies, watchdog
from tf_scalecom.workers.agreement import VARIABLE
from tf_scalecom.workers.collectives import CARRIED
from tf_scalecom.workers.workers import Workers

# From the meeting of the workers to the start of TensorFlow on all of them.
_START_SECONDS = 60
# Far more than the watchdog needs, which asks whenever a collective waits; this is for the rest.
_HEARTBEAT_SECONDS = 20
_SHUTDOWN_SECONDS = 10

# TensorFlow starts both afresh for each strategy, and so gives the second one in a process the
# group and instance keys of the first, for variables of other shapes.
_collective_keys = CollectiveKeys()

# Group keys of one device of each worker: clear of those counted up from 1, one per strategy.
_worker_group_keys = itertools.count(1 << 19)
# Of the devices of one worker, which have a key of their own in each: so many strategies a process.
_local_group_keys = itertools.count(1 << 24)
_LOCAL_GROUPS = 1 << 12

_SKIP_ADVICE = (
    "Loss scaling found a gradient that was not finite in each of them, on some worker. A few at "
    "the start are normal; so many mean that a lower loss scale does not help: look for NaN and "
    "infinities in the data and the loss, or lower the learning rate."
)
# By Keras's LossScaleOptimizer.
_skip_warnings: weakref.WeakKeyDictionary[keras.optimizers.Optimizer, SkipWarning] = (
    weakref.WeakKeyDictionary()
)


class Extended(tensorflow_distribute.CollectiveAllReduceExtended):
    """Implementation of `MultiWorkerMirroredStrategy`."""

    # The coordination service watches the workers' heartbeats; TensorFlow's older health check,
    # for tasks outside it, would wait without end for its first answer.
    _enable_check_health = False

    # Where this process stands, if it does not train alone.
    _cluster = None

    # Whether a step is being traced or run, which of this process's replicas have an empty batch,
    # the share of each one's rows, if Keras makes the step,
    _in_step, _empty, _shares = False, None, None
    # and which gradients an optimizer has that are not reduced yet, a `GradientSet`.
    next_gradients = None

    # How many variables have had the first worker's value. All workers wait for each of them.
    _values_sent = 0

    def __init__(self, *args, **kwargs):
        keras_hooks.install()
        super().__init__(*args, **kwargs)

    def _initialize_local(self, cluster_resolver, devices=None):
        super()._initialize_local(cluster_resolver, devices)
        self._install_cross_device_ops()

    def _initialize_multi_worker(self, cluster_resolver):
        cluster = cluster_lib.find_cluster(cluster_resolver)
        self._cluster = cluster
        watch: contextlib.AbstractContextManager = contextlib.nullcontext()
        if server_has_started():
            # A strategy before this one started the process's one server.
            self._std_server_started = True
        else:
            _require_fresh_tensorflow()
            proxies.go_around(itertools.chain.from_iterable(cluster.jobs.values()))
            watch = cluster_lib.wait_for_peers(cluster)
            _configure_coordination_service(cluster)
        with watch, asked_to_end.kept_from_tensorflow(), joining_with_threads():
            super()._initialize_multi_worker(cluster_resolver)
        self._install_cross_device_ops()
        model_files.install()
        asked_to_end.listen()
        forked_processes.obey_sigterm(asked_to_end.is_own)
        self.workers.require_alike(
            "MultiWorkerMirroredStrategy",
            {
                "tf_scalecom": __version__,
                "tensorflow": tf.__version__,
                "keras": keras.__version__,
                "local devices": len(self.worker_devices),
            },
        )
        shared_seed.agree(self.workers)

    def _initialize_strategy(self, cluster_resolver, devices):
        if not devices:
            cluster_lib.find_cluster(cluster_resolver)
        super()._initialize_strategy(cluster_resolver, devices)

    def _initialize_local_devices(self, cluster_resolver, worker_device):
        devices, kind = super()._initialize_local_devices(cluster_resolver, worker_device)
        if kind == "CPU":
            # TensorFlow's own trains on the first one alone, however many the CPU was split into.
            physical = tf.config.list_physical_devices("CPU")[0]
            split = tf.config.get_logical_device_configuration(physical) or [None]
            devices = tuple(f"{worker_device}/device:CPU:{i}" for i in range(len(split)))
        return devices, kind

    def require_trains(self):
        """Raises ValueError on an evaluator, which trains with nobody."""
        if self._cluster is not None and self._cluster.task_type == "evaluator":
            raise ValueError(
                f"fit: expected a task that trains with others, received a call on "
                f"{self._cluster.name}. There, load what the training saves and call evaluate(); "
                "`strategy.cluster_resolver.task_type` says which task this is."
            )

    def _validate_colocate_with_variable(self, colocate_with_variable):
        made_in_scope.require_variable(colocate_with_variable)
        super()._validate_colocate_with_variable(colocate_with_variable)

    def _update(self, var, fn, args, kwargs, group):
        made_in_scope.require_variable(var)
        return super()._update(var, fn, args, kwargs, group)

    def _install_cross_device_ops(self):
        self._collective_keys = _collective_keys
        options = copy.copy(self._communication_options)
        limit = (
            watchdog.DEFAULT_SECONDS if options.timeout_seconds is None else options.timeout_seconds
        )
        # TensorFlow would start a thread for each collective, which lives that long.
        options.timeout_seconds = None
        self._communication_options = options
        # The workers' own group comes first, so that its key does not depend on their devices.
        self._host_cross_device_ops, self._cross_device_ops = (
            ScaleComAllReduce(
                devices=stock._devices,
                group_size=stock._group_size,
                options=options,
                collective_keys=self._collective_keys,
                first_replica=self._id_in_cluster * len(stock._devices),
            )
            for stock in (self._host_cross_device_ops, self._cross_device_ops)
        )
        (launcher,) = self._host_cross_device_ops._launchers
        names = list(self._cluster.workers) if self._cluster else ["worker 0"]
        self.workers = Workers(launcher, names, self._id_in_cluster)
        self.step_count = StepCount(launcher._device)
        self.worker_cross_device_ops = self._cross_device_ops
        self.local_cross_device_ops = None
        devices = self._cross_device_ops._devices
        if len(devices) > 1 and tf.DeviceSpec.from_string(devices[0]).device_type == "GPU":
            self.local_cross_device_ops = self.make_local_cross_device_ops()
        if len(devices) > 1:
            self.worker_cross_device_ops = ScaleComAllReduce(
                devices=devices[:1],
                group_size=self._num_workers,
                options=options,
                collective_keys=CollectiveKeys(next(_worker_group_keys)),
                first_replica=self._id_in_cluster,
            )
        self.launchers = {
            launcher
            for cross_device_ops in (
                self._cross_device_ops,
                self._host_cross_device_ops,
                self.worker_cross_device_ops,
                self.local_cross_device_ops,
            )
            if cross_device_ops
            for launcher in cross_device_ops._launchers
        }
        if self._num_workers > 1:
            watchdog.watch(self.launchers, self._cluster.name, self._cluster.peers, limit)

    def make_local_cross_device_ops(self) -> ScaleComAllReduce:
        """Of this worker's devices alone: NCCL, where they are GPUs."""
        devices = self._cross_device_ops._devices
        first_key = next(_local_group_keys) + self._id_in_cluster * _LOCAL_GROUPS
        return ScaleComAllReduce(
            devices=devices,
            group_size=len(devices),
            options=self._communication_options,
            collective_keys=CollectiveKeys(first_key),
        )

    def _get_variable_creator_initial_value(self, replica_id, device, primary_var, **kwargs):
        if replica_id > 0 or self._num_workers == 1:
            return super()._get_variable_creator_initial_value(
                replica_id, device, primary_var, **kwargs
            )

        path = path_of_new_variable(kwargs.get("name"))
        is_made_alone = made_alone.is_made_alone(kwargs.get("name"))

        # TensorFlow's own would send it under a key that it counts, and wait without end.
        def initial_value():
            value = kwargs["initial_value"]
            value = value() if callable(value) else value
            if isinstance(value, CheckpointInitialValue):
                value = value.wrapped_value
            value = tf.convert_to_tensor(value, kwargs.get("dtype"))
            if model_files.loading() or (is_made_alone and made_alone.is_constant(value)):
                with tf.device(device):
                    return tf.identity(value)
            description = {
                VARIABLE: path,
                "shape": value.shape.as_list(),
                "dtype": value.dtype.name,
                # What computes with it may have another dtype, without any other trace.
                "dtype policy": keras.config.dtype_policy().name,
            }
            self.workers.require_alike("each new variable", description)
            value = self._of_chief(value, path)
            self._values_sent += 1
            with tf.device(device):
                return tf.identity(value)

        return initial_value

    def _of_chief(self, value, path):
        """The first worker's value, on all workers; `path` is that of the variable it is for."""
        (launcher,) = self._host_cross_device_ops._launchers
        if value.dtype not in CARRIED:
            raise ValueError(
                "A variable of several workers: expected a dtype among "
                f"{', '.join(dtype.name for dtype in CARRIED)}, received {value.dtype.name} "
                f"({path}). Keep such state outside of `strategy.scope()`."
            )
        if value.dtype == tf.string:
            return launcher.all_gather(value[tf.newaxis], axis=0, site="initial_value")[0]
        return launcher.broadcast(
            value,
            is_source=tf.constant(self._is_chief),
            source_rank=tf.constant(0),
            shape=value.shape,
            dtype=value.dtype,
            site="initial_value",
        )

    def _call_for_each_replica(self, fn, args, kwargs):
        self._refuse_xla()
        # At the end of data a step is abandoned where it waits for its batch. A collective that
        # does not need the batch, such as that of a penalty's gradient, could have started on
        # one worker and not on another: have all of the step wait.
        batch = [
            tensor
            for tensor in tf.nest.flatten((args, kwargs), expand_composites=True)
            if isinstance(tensor, tf.Tensor) and not hasattr(tensor, "numpy")
        ]

        @tf.autograph.experimental.do_not_convert  # which `fn` has been
        def after_batch(*args, **kwargs):
            # A replica has a thread of its own, which knows nothing of what this one waits for.
            with tf.control_dependencies(batch):
                return fn(*args, **kwargs)

        # An update makes such calls inside of one.
        outermost, self._in_step = not self._in_step, True
        try:
            if outermost and self._num_replicas_in_sync > 1:
                self._empty = empty_batches.find_empty((args, kwargs), len(self.worker_devices))
            # A `tf.function` waits as a whole, and is to be seen by TensorFlow as one.
            is_function = isinstance(fn, tf.types.experimental.GenericFunction)
            with tf.control_dependencies(batch):
                result = super()._call_for_each_replica(
                    fn if is_function else after_batch, args, kwargs
                )
        finally:
            if outermost:
                self._in_step, self._empty, self._shares = False, None, None
                self.next_gradients = None
        if _is_finite_check(fn):
            result = self._all_true(result)
            loss_scaling = fn.__self__
            warning = _skip_warnings.setdefault(loss_scaling, SkipWarning(_SKIP_ADVICE))
            step = loss_scaling.iterations  # loss scaling's skipped steps do not count there

            def skipped():
                warning.count(step, next_step=step)

            tf.cond(result, lambda: None, skipped)
        return result

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        # Where `ReplicaContext.all_reduce` leads, and with it the gradients of Keras's optimizers.
        if self._empty is not None and reduce_op == tf.distribute.ReduceOp.SUM:
            values, destinations = zip(*value_destination_pairs, strict=True)
            value_destination_pairs = list(
                zip(self._without_empty(values), destinations, strict=True)
            )
        with gradient_sets.reducing(self, len(value_destination_pairs)):
            return super()._batch_reduce_to(reduce_op, value_destination_pairs, options)

    def gather_to_all(self, rows):
        """The rows of all replicas, in their order, on each; call it in cross-replica context."""
        return self._gather_to(rows, rows, axis=0)

    def _without_empty(self, values):
        local = map(self._container_strategy().experimental_local_results, values)
        kept = self.leave_out_empty(list(zip(*local, strict=True)))
        return [regroup(parts) for parts in zip(*kept, strict=True)]

    def _create_variable(self, next_creator, **kwargs):
        sent = self._values_sent
        variable = super()._create_variable(next_creator, **kwargs)
        if self._values_sent > sent:
            variable._tf_scalecom_number = sent
        return variable

    def number_of(self, variable):
        """The variable's number among those that had the first worker's value; None of others.

        It is the same on all workers.

        Args:
            variable: a Keras variable, or one of TensorFlow's.
        """
        if isinstance(variable, keras.Variable):
            variable = variable.value
        return getattr(variable, "_tf_scalecom_number", None)

    def is_empty_here(self):
        """Whether the current replica has an empty batch; None if it cannot, or in no replica."""
        if self._empty is None or (replica := self._replica_here()) is None:
            return None
        return self._empty[replica]

    def share_here(self):
        """The `Share` of the current replica; None if it has none, or in no replica."""
        return (self._shares or {}).get(self._replica_here())

    def set_share_here(self, share):
        """Takes the `Share` of the current replica, for the rest of the step."""
        self._shares = {**(self._shares or {}), self._replica_here(): share}

    def is_first_replica_here(self):
        """Whether the current replica is the first of this process."""
        return self._replica_here() == 0

    def _replica_here(self):
        """Place of the current replica in this process; None in no replica."""
        context = tf.distribute.get_replica_context()
        if context is None:
            return None
        return self._get_local_replica_id(tf.get_static_value(context.replica_id_in_sync_group))

    def leave_out_empty(self, per_replica):
        """Sets what is not finite to zero in the gradients of replicas with an empty batch.

        For reductions that a merge_call in the step makes, past `ReplicaContext.all_reduce`.

        Args:
            per_replica: [replica of this process][...] tensors or `tf.IndexedSlices`.

        Returns:
            The same structure.
        """
        if self._empty is None:
            return per_replica
        return [
            empty_batches.leave_out(own, empty)
            for own, empty in zip(per_replica, self._empty, strict=True)
        ]

    def _refuse_xla(self):
        if compiled_by_xla() and self._num_replicas_in_sync > 1:
            raise ValueError(
                "Expected a step that XLA does not compile, received one under jit_compile=True: "
                "XLA cannot compile the collectives of several workers or replicas. Pass "
                "jit_compile=False or 'auto' to compile(), or compile parts of the model by "
                "tf.function(jit_compile=True)."
            )

    def _all_true(self, per_replica):
        """Combines bools of all replicas by and."""
        false = [
            tf.cast(tf.logical_not(value), tf.int32)
            for value in self._container_strategy().experimental_local_results(per_replica)
        ]
        false = regroup(false, always_wrap=True)
        return tf.equal(self._container_strategy().reduce("SUM", false), 0)

    def _experimental_distribute_dataset(self, dataset, options):
        if _is_per_replica(options):
            return super()._experimental_distribute_dataset(dataset, options)
        kind = tensorflow_distribute.DistributedDataset
        if self._num_workers > 1:
            kind, dataset = epochs.DistributedDataset, in_one_order(dataset)
        return kind(
            self._input_workers_with_options(options),
            self._container_strategy(),
            self._prepared(dataset),
            num_replicas_in_sync=self._num_replicas_in_sync,
            input_context=self._make_input_context(),
            options=self._iterator_options(options),
        )

    def _distribute_datasets_from_function(self, dataset_fn, options):
        if _is_per_replica(options):
            return super()._distribute_datasets_from_function(dataset_fn, options)
        kind = (
            tensorflow_distribute.DistributedDatasetsFromFunction
            if self._num_workers == 1
            else epochs.DistributedDatasetsFromFunction
        )
        return kind(
            self._input_workers_with_options(options),
            self._container_strategy(),
            input_contexts=[self._make_input_context()],
            dataset_fn=lambda place: self._prepared(dataset_fn(place)),
            options=self._iterator_options(options),
        )

    def _prepared(self, dataset):
        if self._num_workers > 1:
            dataset = cache_files.one_per_worker(dataset, self._id_in_cluster, self._num_workers)
        return epochs.without_tuner(dataset)

    def _iterator_options(self, options):
        on_host = self._local_device_type == "CPU" and len(self.worker_devices) == 1
        return epochs.PLAIN_ITERATOR if on_host else options


def _is_per_replica(options):
    """Whether input options ask for what the base class refuses, with its own message."""
    return (
        options is not None
        and options.experimental_replication_mode == tf.distribute.InputReplicationMode.PER_REPLICA
    )


def _is_finite_check(fn):
    """Whether `fn` is the finite check of Keras's loss scaling.

    It runs on each replica's own gradients, which are not reduced yet, but Keras takes the first
    replica's result for the result of all.
    """
    return (
        isinstance(getattr(fn, "__self__", None), keras.optimizers.LossScaleOptimizer)
        and fn.__name__ == "check_finite"
    )


def _require_fresh_tensorflow():
    """Says what to move where, while no other worker waits for this one yet."""
    if runtime_has_started():
        raise RuntimeError(
            "Expected MultiWorkerMirroredStrategy to be made before anything else runs in "
            "TensorFlow; received a process in which something has: a tensor, a dataset, a layer "
            "or a model was made, a random number drawn, or devices were listed. Make the "
            "strategy first, right after the imports and settings (`set_random_seed`, "
            "`tf.config.set_...`), and move what stands before it behind it."
        )


def _configure_coordination_service(cluster):
    """Gives finite limits to the waits for a worker that comes, or comes no more."""
    if eager_context().coordination_service is not None or not cluster.peers:
        return
    jobs = [
        CoordinatedJob(name=job, num_tasks=len(cluster.jobs[job]))
        for job in ("chief", "worker")
        if cluster.jobs.get(job)
    ]
    eager_context().configure_coordination_service(
        service_type="standalone",
        service_leader=tensorflow_distribute.coordination_leader(
            tf.train.ClusterSpec({job: list(a) for job, a in cluster.jobs.items()})
        ),
        coordinated_jobs=jobs,
        cluster_register_timeout_in_ms=_START_SECONDS * 1000,
        heartbeat_timeout_in_ms=_HEARTBEAT_SECONDS * 1000,
        # At the end workers wait for each other, lest the one that is done first be taken for
        # crashed; but not for one that never comes to its end.
        shutdown_barrier_timeout_in_ms=_SHUTDOWN_SECONDS * 1000,
    )
    # One that dies on its way from the meeting to here is named; without, it is missed for an hour.
    eager_context().coordination_service.cluster_register_with_barrier = True
