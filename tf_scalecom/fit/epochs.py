"""What Keras's epochs need to know about data that lives on several workers.

Keras counts an epoch's batches on its own worker, and stops there; where workers hold different
numbers of batches, the others then wait for it. Under this package's strategy an epoch ends on
all workers together, when the last one has no data left: a worker without data takes part with
an empty batch until then. All that takes is that Keras does not count.

Keras has no hook for it, and its classes serve other strategies too. So the few methods by which
it comes to a strategy's data lead here (`calls_from_keras`), where the one Keras object at hand is
adjusted.
"""

import keras
import tensorflow as tf

from tf_scalecom.compat import tensorflow_distribute
from tf_scalecom.compat.keras_calls import Call, innermost_call
from tf_scalecom.compat.keras_objects import dtype_policies
from tf_scalecom.compat.keras_trainer import GeneratorDataAdapter, PyDatasetAdapter, first_batches
from tf_scalecom.fit import alike_state, made_in_scope, shared_order
from tf_scalecom.fit.alike_data import all_read_all, draws_values, warn_unless_alike
from tf_scalecom.fit.file_callbacks import one_writer_per_file
from tf_scalecom.fit.rows import static_rows
from tf_scalecom.fit.stop_together import stop_together
from tf_scalecom.state import model_objects
from tf_scalecom.workers.agreement import (
    describe_optimizer,
    describe_variables,
    require_same_iterations,
)
from tf_scalecom.workers.workers import Workers

# What a call does, and what Keras calls it in a list of callbacks none of which sees batches.
_DOING = {
    "fit": ("training", "_async_train"),
    "evaluate": ("evaluating", "_async_test"),
    "predict": ("predicting", "_async_predict"),
}


def _share_of(batch, num_replicas):
    """The rows of a batch that one of `num_replicas` gets."""

    def first_rows(value):
        if not isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)) or not value.shape:
            return value
        rows = -(-value.shape[0] // num_replicas)
        if isinstance(value, tf.SparseTensor):
            return tf.sparse.slice(value, [0] * value.shape.rank, [rows, *value.shape[1:]])
        return value[:rows]

    return tf.nest.map_structure(first_rows, batch)


def share_out(epoch_iterator, dataset: tf.data.Dataset, workers: Workers) -> tf.data.Dataset:
    """Prepares a dataset that Keras wants to share out between workers; a collective call.

    Args:
        epoch_iterator: the Keras iterator that is being made.
        dataset: what Keras has made of its data.
        workers: all of them.

    Returns:
        The dataset to share out.
    """
    adapter = epoch_iterator.data_adapter
    count = -1 if adapter.num_batches is None else adapter.num_batches
    seed = shared_order.draw_seed(adapter)
    counts, seeds = zip(*workers.gather([count, seed], "numbers of batches"), strict=True)
    if seed is not None and not shared_order.is_keras_alike(adapter, seeds):
        seed = next(seed for seed in seeds if seed is not None)
        dataset = shared_order.shuffled_alike(adapter, dataset, seed)
    if len(set(counts)) > 1:
        _count_no_batches(epoch_iterator)
    return dataset


def _count_no_batches(epoch_iterator):
    """Makes a Keras epoch go on until the data ends."""
    adapter = epoch_iterator.data_adapter
    adapter.__class__ = type("Uncounted", (type(adapter),), {"num_batches": None})
    epoch_iterator._num_batches = None


# TensorFlow reads even the data of one device through an iterator for several, which has a tuner of
# its own. With these options it takes a plain one. One object: TensorFlow compares by identity.
PLAIN_ITERATOR = tf.distribute.InputOptions(
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
    experimental_fetch_to_device=False,
)


def without_tuner(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without tf.data's tuner, unless its options ask for it.

    When an iterator ends, TensorFlow wakes its tuner a moment before the tuner can see that it is
    over. Often it goes back to sleep, for up to a minute, and the end of the epoch waits for it:
    on one worker, and so on all. Without it, AUTOTUNE means as many parallel calls as there are
    cores, up to 16, and buffers that grow when found empty.
    """
    options = tf.data.Options()
    options.autotune.enabled = bool(dataset.options().autotune.enabled)
    return dataset.with_options(options)


class EndsWithLastWorker:
    """Mixed into a distributed dataset: its length is unknown, and its end no surprise."""

    _ends_alike = False
    # Iterators made over it, each with another order of a `shuffle`; not those that learn shapes.
    passes = 0
    _restart: tuple[int, int] | None = None

    @property
    def cardinality(self):
        if super().cardinality == tf.data.INFINITE_CARDINALITY:
            return tf.data.INFINITE_CARDINALITY
        return tf.data.UNKNOWN_CARDINALITY

    def of_epoch(self, epoch_iterator):
        """Iterates for Keras, over an epoch or to learn shapes; a collective call.

        Args:
            epoch_iterator: Keras's, over this dataset.
        """
        # Every worker is in the same call to Keras, so it may ask the others.
        self._check_ends_alike()
        self._strategy.extended.step_count.ask(False)
        self._strategy.extended.step_count.forget_rows()
        call = innermost_call()
        if call is not None and call.builds:
            return self._begin_to_build(epoch_iterator, call)
        shared_order.forget_read_ahead(epoch_iterator.data_adapter)
        if call is not None:
            self._begin_epoch(epoch_iterator, call)
        if not epoch_iterator.steps_per_epoch:
            # Keras warns of interrupted training where it did not count. The end is regular.
            epoch_iterator._interrupted_warning = lambda: None
        # In `fit` and `evaluate` the others have learned the shapes of some data before.
        iterator = self._begin_pass()
        is_first = call is not None and call.name == "predict"
        return _not_empty(iterator, "predict") if is_first else iterator

    def go_on(self, passes: int, batches: int) -> None:
        """Has the next iterator be the one after so many, without so many batches."""
        self._restart = passes, batches

    def _begin_pass(self):
        passes, batches = self._restart or (self.passes, 0)
        self._restart = None
        for _ in range(self.passes, passes):
            iter(self)  # for the order that comes after
        self.passes = passes + 1
        replicas = len(self._strategy.extended.worker_devices)
        with tensorflow_distribute.without_first(self, batches * replicas):
            return iter(self)

    def _check_ends_alike(self):
        if self._ends_alike:
            return
        infinite = self.cardinality == tf.data.INFINITE_CARDINALITY
        workers = self._strategy.extended.workers
        workers.require_alike(
            "the data", {"length": "infinite (`repeat()`)" if infinite else "finite"}
        )
        self._ends_alike = True
        if infinite:
            rows = set(workers.gather(static_rows(self.element_spec), "rows of a batch"))
            if None in rows or len(rows) > 1:
                self._count_each_step()

    def _count_each_step(self):
        """Has workers count in each step, infinite data too, who has how much of it."""
        self._cardinality = tf.data.UNKNOWN_CARDINALITY
        self._enable_get_next_as_optional = True

    def _begin_to_build(self, epoch_iterator, call):
        """Prepares for Keras to learn shapes."""
        if call.name == "fit":
            # Before it is built: workers with different ones would wait for each other's variables.
            self._strategy.extended.workers.require_alike(
                "the optimizer", describe_optimizer(call.model.optimizer, constant_rate=False)
            )
        return _not_empty(self._first_batches(epoch_iterator.data_adapter, call.name), call.name)

    def _first_batches(self, adapter, method):
        """Iterates over some of the data, to learn shapes for a call to that method."""
        return iter(self)

    def _begin_training(self, adapter, epoch):
        """Prepares the first epoch of a call to `fit`, of that number."""

    def _begin_epoch(self, epoch_iterator, call):
        """Prepares the first epoch of a call to Keras."""
        extended = self._strategy.extended
        doing, unseen = _DOING[call.name]
        if not stop_together(call.callbacks, doing, epoch_iterator, extended):
            return
        extended.workers.require_alike(call.name, _compared(call))
        if doing != "predicting":
            made_in_scope.require_metrics(call.model, self._strategy, call.name)
        if doing == "training":
            # Callbacks may just have restored them.
            optimizers = model_objects.optimizers(call.model).values()
            require_same_iterations(extended.workers, optimizers)
            alike_state.require_alike(
                call.model, extended.workers, f"before epoch {call.epoch + 1}"
            )
            one_writer_per_file(call.callbacks, extended.workers)
            self._begin_training(epoch_iterator.data_adapter, call.epoch)
        if self.cardinality == tf.data.INFINITE_CARDINALITY and any(
            extended.workers.gather(not getattr(call.callbacks, unseen), "callbacks of each batch")
        ):
            # A callback that sees each batch may stop after any. The step in which workers agree
            # on the end of data, which has none here, is then worth its time.
            self._count_each_step()


def _compared(call: Call) -> dict:
    """What of a call is to be alike on all workers."""
    given = call.arguments
    policies = dtype_policies(call.model)
    if call.name != "fit":
        return {"steps": given["steps"], "dtype policies": policies}
    return {
        "initial_epoch": call.epoch,
        "epochs": min(given["epochs"], keras.config.max_epochs() or given["epochs"]),
        "steps_per_epoch": given["steps_per_epoch"],
        "validation": given["validation_data"] is not None or bool(given["validation_split"]),
        "validation_freq": given["validation_freq"],
        "steps_per_execution": call.model.steps_per_execution,
        "variables": describe_variables(call.model.variables),
        "dtype policies": policies,
        # A rate that is a variable is compared with the weights, `alike_state`.
        "optimizer": describe_optimizer(call.model.optimizer, constant_rate=False),
    }


def _not_empty(iterator, method):
    """Iterates; it is an error if there is nothing, which then is so on all workers.

    Keras, on one worker, leaves `fit` and `evaluate` with nothing, and fails in `predict`.
    """
    empty = True
    for batch in iterator:
        empty = False
        yield batch
    if empty:
        raise ValueError(
            f"{method}: expected data on one worker at least, received a dataset without a batch "
            "on each. Look at what it is made from: the files found, a filter, `take`, "
            "`drop_remainder` with less than a batch."
        )


class DistributedDataset(EndsWithLastWorker, tensorflow_distribute.DistributedDataset):
    """A dataset sharded between workers, an epoch of which ends on all of them together."""

    def _first_batches(self, adapter, method):
        workers = self._strategy.extended.workers
        if isinstance(adapter, GeneratorDataAdapter):
            # What a generator has given to learn shapes it does not give again to train, and one
            # thread would still fetch ahead while another begins the epoch.
            first = first_batches(adapter)[0]
            warn_unless_alike(first, workers, method)
            return iter([first])
        if all_read_all(self._original_dataset) and not draws_values(self._original_dataset):
            # Before it is shared out, in place of after it, so that nothing is read twice.
            first = next(iter(self._original_dataset), None)
            if warn_unless_alike(first, workers, method):
                return iter([_share_of(first, self._strategy.num_replicas_in_sync)])
        return super()._first_batches(adapter, method)

    def _begin_training(self, adapter, epoch):
        shared_order.begin_at(adapter, epoch)
        if isinstance(adapter, PyDatasetAdapter):
            # Its `on_epoch_end` may have drawn an order since it was built.
            batch = None if adapter.num_batches == 0 else adapter.py_dataset[0]
            warn_unless_alike(batch, self._strategy.extended.workers, "fit")


class DistributedDatasetsFromFunction(
    EndsWithLastWorker, tensorflow_distribute.DistributedDatasetsFromFunction
):
    """One dataset of each worker's own, an epoch of which ends on all of them together."""
