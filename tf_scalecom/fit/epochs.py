"""What Keras's epochs need to know about data that lives on several workers.

Keras counts an epoch's batches on its own worker, and stops there; where workers hold different
numbers of batches, the others then wait for it. Under this package's strategy an epoch ends on
all workers together, when the last one has no data left: a worker without data takes part with
an empty batch until then. All that takes is that Keras does not count.

Keras has no hook for it, and its classes serve other strategies too. So the strategy recognises
the few calls that Keras makes into it by the code they come from, and adjusts the one Keras
object at hand.
"""

import inspect
import sys

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator
from tensorflow.python.distribute import input_lib

from tf_scalecom.fit import shared_order
from tf_scalecom.fit.alike_data import all_read_all, draws_values, warn_unless_alike
from tf_scalecom.fit.file_callbacks import one_writer_per_file
from tf_scalecom.fit.stop_together import stop_together
from tf_scalecom.state import model_objects
from tf_scalecom.workers.agreement import (
    describe_optimizer,
    describe_variables,
    require_same_iterations,
)
from tf_scalecom.workers.workers import Workers

_BUILD_MODEL = TensorFlowTrainer._maybe_symbolic_build.__code__
_FIT, _EVALUATE, _PREDICT = (
    inspect.unwrap(method).__code__
    for method in (TensorFlowTrainer.fit, TensorFlowTrainer.evaluate, TensorFlowTrainer.predict)
)
# What a call does, and what Keras calls it in a list of callbacks none of which sees batches.
_DOING = {
    _FIT: ("training", "_async_train"),
    _EVALUATE: ("evaluating", "_async_test"),
    _PREDICT: ("predicting", "_async_predict"),
}


def called_to_build_model(depth=2) -> bool:
    """Whether the caller's caller is Keras, reducing a batch only to learn its shapes."""
    return sys._getframe(depth).f_code is _BUILD_MODEL


def model_to_build(depth=2) -> tuple[keras.Model, object, bool] | None:
    """Model, batch and whether to train, if the caller's caller is Keras, about to build one."""
    frame = sys._getframe(depth)
    if frame.f_code is not _BUILD_MODEL:
        return None
    to_train = sys._getframe(depth + 1).f_code is _FIT
    return frame.f_locals["self"], frame.f_locals["data_batch"], to_train


def model_in_fit(depth=2) -> keras.Model | None:
    """The model in whose `fit` the caller's caller makes an epoch iterator, if any."""
    frame = sys._getframe(depth)
    if frame.f_code is not TFEpochIterator.__init__.__code__:
        return None
    caller = sys._getframe(depth + 1)
    return caller.f_locals["self"] if caller.f_code is _FIT else None


def called_to_count_data(depth=2) -> bool:
    """Whether the caller's caller is a data iterator, counting the replicas that have data."""
    return sys._getframe(depth).f_code is input_lib._calculate_replicas_with_values.__code__


def example_of(batch, strategy):
    """A batch of the shapes of this worker's `batch`, of at least one row.

    Args:
        batch: nested structure of distributed values.
        strategy: the strategy they belong to.
    """

    def local(value):
        value = strategy.experimental_local_results(value)[0]
        if isinstance(value, tf.Tensor) and value.shape.rank and value.shape[0] == 0:
            return tf.zeros([1, *value.shape[1:]], value.dtype)
        return value

    return tf.nest.map_structure(local, batch)


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


def calling_epoch_iterator(depth=2) -> TFEpochIterator | None:
    """The Keras epoch iterator in whose constructor the caller's caller is, if any."""
    frame = sys._getframe(depth)
    if frame.f_code is TFEpochIterator.__init__.__code__:
        return frame.f_locals["self"]
    return None


def share_out(
    epoch_iterator: TFEpochIterator, dataset: tf.data.Dataset, workers: Workers
) -> tf.data.Dataset:
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


class _EndsWithLastWorker:
    """Mixed into a distributed dataset: its length is unknown, and its end no surprise."""

    _ends_alike = False

    @property
    def cardinality(self):
        if super().cardinality == tf.data.INFINITE_CARDINALITY:
            return tf.data.INFINITE_CARDINALITY
        return tf.data.UNKNOWN_CARDINALITY

    def __iter__(self):
        frame = sys._getframe(1)
        if frame.f_code is not EpochIterator._enumerate_iterator.__code__:
            return super().__iter__()
        # Every worker is in the same call to Keras, so it may ask the others.
        self._check_ends_alike()
        self._strategy.extended.data_end.ask(False)
        epoch_iterator = frame.f_locals["self"]
        caller = frame.f_back.f_back
        if caller.f_code is _BUILD_MODEL:
            return self._begin_to_build(epoch_iterator, caller.f_back)
        shared_order.forget_read_ahead(epoch_iterator.data_adapter)
        if caller.f_code in _DOING:
            self._begin_epoch(epoch_iterator, caller)
        if not epoch_iterator.steps_per_epoch:
            # Keras warns of interrupted training where it did not count. The end is regular.
            epoch_iterator._interrupted_warning = lambda: None
        iterator = super().__iter__()
        # The others have learned the shapes of some data before.
        return _not_empty(iterator, "predict") if caller.f_code is _PREDICT else iterator

    def _check_ends_alike(self):
        if self._ends_alike:
            return
        infinite = self.cardinality == tf.data.INFINITE_CARDINALITY
        self._strategy.extended.workers.require_alike(
            "the data", {"length": "infinite (`repeat()`)" if infinite else "finite"}
        )
        self._ends_alike = True

    def _begin_to_build(self, epoch_iterator, caller):
        """Prepares for Keras to learn shapes; `caller` is the frame of `fit` or `evaluate`."""
        if caller.f_code is _FIT:
            # Before it is built: workers with different ones would wait for each other's variables.
            self._strategy.extended.workers.require_alike(
                "the optimizer", describe_optimizer(caller.f_locals["self"].optimizer)
            )
        return _not_empty(self._first_batches(epoch_iterator, caller), caller.f_code.co_name)

    def _first_batches(self, epoch_iterator, caller):
        """Iterates over some of the data, to learn shapes."""
        return super().__iter__()

    def _begin_training(self, adapter, epoch):
        """Prepares the first epoch of a call to `fit`, of that number."""

    def _begin_epoch(self, epoch_iterator, caller):
        """Prepares the first epoch of a call to Keras, of which `caller` is the frame."""
        extended, call = self._strategy.extended, caller.f_locals
        callbacks, (doing, unseen) = call["callbacks"], _DOING[caller.f_code]
        if not stop_together(callbacks, doing, epoch_iterator, extended):
            return
        if doing == "training":
            arguments = {
                "initial_epoch": call["epoch"],
                "epochs": call["epochs"],
                "steps_per_epoch": call["steps_per_epoch"],
                "validation": call["validation_data"] is not None,
                "validation_freq": call["validation_freq"],
                "steps_per_execution": call["self"].steps_per_execution,
                "variables": describe_variables(call["self"].variables),
                "optimizer": describe_optimizer(call["self"].optimizer),
            }
        else:
            arguments = {"steps": call["steps"]}
        extended.workers.require_alike(caller.f_code.co_name, arguments)
        if doing == "training":
            # Callbacks may just have restored them.
            optimizers = model_objects.optimizers(call["self"]).values()
            require_same_iterations(extended.workers, optimizers)
            one_writer_per_file(callbacks, extended.workers)
            self._begin_training(epoch_iterator.data_adapter, call["epoch"])
        if self.cardinality == tf.data.INFINITE_CARDINALITY and any(
            extended.workers.gather(not getattr(callbacks, unseen), "callbacks of each batch")
        ):
            # A callback that sees each batch may stop after any. The step in which workers agree
            # on the end of data, which has none here, is then worth its time.
            self._cardinality = tf.data.UNKNOWN_CARDINALITY
            self._enable_get_next_as_optional = True


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


class DistributedDataset(_EndsWithLastWorker, input_lib.DistributedDataset):
    """A dataset sharded between workers, an epoch of which ends on all of them together."""

    def _first_batches(self, epoch_iterator, caller):
        adapter = epoch_iterator.data_adapter
        workers, call = self._strategy.extended.workers, caller.f_code.co_name
        if isinstance(adapter, GeneratorDataAdapter):
            # What a generator has given to learn shapes it does not give again to train, and one
            # thread would still fetch ahead while another begins the epoch.
            warn_unless_alike(adapter._first_batches[0], workers, call)
            return iter(adapter._first_batches[:1])
        if all_read_all(self._original_dataset) and not draws_values(self._original_dataset):
            # Before it is shared out, in place of after it, so that nothing is read twice.
            first = next(iter(self._original_dataset), None)
            if warn_unless_alike(first, workers, call):
                return iter([_share_of(first, self._strategy.num_replicas_in_sync)])
        return super()._first_batches(epoch_iterator, caller)

    def _begin_training(self, adapter, epoch):
        shared_order.begin_at(adapter, epoch)
        if isinstance(adapter, PyDatasetAdapter):
            # Its `on_epoch_end` may have drawn an order since it was built.
            batch = None if adapter.num_batches == 0 else adapter.py_dataset[0]
            warn_unless_alike(batch, self._strategy.extended.workers, "fit")


class DistributedDatasetsFromFunction(
    _EndsWithLastWorker, input_lib.DistributedDatasetsFromFunction
):
    """One dataset of each worker's own, an epoch of which ends on all of them together."""
