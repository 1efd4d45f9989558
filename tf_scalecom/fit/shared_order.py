"""The order in which `fit(shuffle=True)` gives arrays and `PyDataset`s, alike on all workers.

Keras draws that of arrays from TensorFlow's generator and that of `PyDataset`s from Python's, which
need not be alike: one has no seed, and from the other a worker that has loaded a model alone has
drawn more. So the workers agree on a seed when a call to `fit` begins; the order of each epoch
comes from that and the epoch's number; a restart takes both from the backup. Where TensorFlow's
global seed is set, the same on all workers, arrays keep Keras's order, that of one process.
"""

import random
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.compat import tensorflow_data
from tf_scalecom.compat.keras_trainer import ArrayDataAdapter, DataAdapter, PyDatasetAdapter
from tf_scalecom.compat.tensorflow_runtime import global_seed


class Order:
    """The orders of an adapter's data, one for each pass over them: for its seed and its number.

    Attributes:
        seed: the same on all workers.
        number: of the next pass over arrays, None before training; of a `PyDataset`'s epoch.
    """

    def __init__(self, seed: int, number: int | None = None):
        self.seed, self.number = seed, number


def draw_seed(adapter: DataAdapter) -> int | None:
    """A seed for the order of an adapter's data; None if Keras does not shuffle them."""
    if isinstance(adapter, PyDatasetAdapter):
        shuffled = adapter.shuffle and adapter.py_dataset.num_batches is not None
    else:
        shuffled = isinstance(adapter, ArrayDataAdapter) and adapter._shuffle
    if not shuffled:
        return None
    seed = global_seed()
    if isinstance(adapter, ArrayDataAdapter) and seed is not None:
        return int(seed) % 2**32
    # From where Keras has those of layers, so that `keras.utils.set_random_seed` decides on it.
    return random.getrandbits(31)


def is_keras_alike(adapter: DataAdapter, seeds: Sequence[int | None]) -> bool:
    """Whether Keras itself shuffles alike on all workers, given what each of them has drawn."""
    seeded = isinstance(adapter, ArrayDataAdapter) and global_seed() is not None
    return seeded and len(set(seeds)) == 1


def shuffled_alike(adapter: DataAdapter, dataset: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    """The dataset that Keras has made of an adapter's data, in an order that comes from a seed.

    Args:
        adapter: one whose data Keras shuffles.
        dataset: its `get_tf_dataset()`.
        seed: the same on all workers.
    """
    if isinstance(adapter, ArrayDataAdapter):
        adapter.order = Order(seed)
        return _gathered(dataset, _batches_of_indices(adapter))
    adapter.order = Order(seed, 0)
    adapter.shuffle = False
    if adapter.enqueuer is not None:
        adapter.enqueuer.shuffle = False
    _replace(adapter, _Shuffled(adapter.py_dataset, adapter.order))
    return dataset


def begin_at(adapter: DataAdapter, epoch: int) -> None:
    """Has the next pass over an adapter's arrays be that of an epoch, unless a restart knows it."""
    order = getattr(adapter, "order", None)
    if order is not None and order.number is None:
        order.number = epoch


def describe(adapter: DataAdapter, in_epoch: bool) -> list | None:
    """Seed and number of the order in use, or of the next epoch's; None where Keras has its own."""
    order = getattr(adapter, "order", None)
    if order is None:
        return None
    is_taken = in_epoch and isinstance(adapter, ArrayDataAdapter)
    return [order.seed, order.number - 1 if is_taken else order.number]


def shuffle(adapter: DataAdapter) -> bool | str:
    """What of an adapter's data is in an order drawn at random: nothing, all, or each "batch"."""
    if isinstance(adapter, ArrayDataAdapter):
        return adapter._shuffle
    return hasattr(adapter, "order")


def restore(adapter: DataAdapter, described: list | None) -> None:
    """Has the next epoch's order be the one that was described."""
    if described is not None:
        adapter.order.seed, adapter.order.number = described


def pass_over(adapter: DataAdapter) -> None:
    """Leaves out the next pass over an adapter's arrays."""
    order = getattr(adapter, "order", None)
    if order is not None and isinstance(adapter, ArrayDataAdapter):
        order.number += 1


def begin_at_batch(adapter: DataAdapter, batch: int) -> int:
    """Has a `PyDataset` go on at a batch of its next epoch.

    Returns:
        How many batches are still to be left out of the data that come from it: those of other
        data, and all where nothing is left, which would have Keras wait for readers ahead.
    """
    if not isinstance(adapter, PyDatasetAdapter):
        return batch
    count = adapter.py_dataset.num_batches
    if count is not None and batch >= count:
        return batch
    _replace(adapter, _Rest(adapter.py_dataset, batch))
    return 0


def forget_read_ahead(adapter: DataAdapter) -> None:
    """Has an epoch of a `PyDataset` begin with its first batch.

    With `workers` or processes Keras keeps what they had read when an epoch ended early, such as
    the one from which it learns shapes, for the beginning of the next; as many batches at the end
    of that are then left out.
    """
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is not None and adapter.py_dataset.num_batches is not None:
        enqueuer.ready_queue.queue.clear()


class _Shuffled(keras.utils.PyDataset):
    """A `PyDataset` whose batches come in another order in each epoch."""

    def __init__(self, dataset, order):
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset, self._order, self._indices = dataset, order, []

    @property
    def num_batches(self):
        return self._dataset.num_batches

    def __getitem__(self, index):
        # Drawn where it is needed: the number of batches is the user's to change between epochs,
        # and each process that reads for this one comes to the same order.
        if len(self._indices) != self.num_batches:
            indices = list(range(self.num_batches))
            random.Random(f"{self._order.seed} {self._order.number}").shuffle(indices)
            self._indices = indices
        return self._dataset[self._indices[index]]

    def on_epoch_begin(self):
        self._dataset.on_epoch_begin()

    def on_epoch_end(self):
        self._dataset.on_epoch_end()
        self._order.number, self._indices = self._order.number + 1, []


class _Rest(keras.utils.PyDataset):
    """What is left of a `PyDataset` in an epoch that goes on; a later epoch has all of it."""

    def __init__(self, dataset, first):
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset, self._first = dataset, first

    @property
    def num_batches(self):
        count = self._dataset.num_batches
        return None if count is None else count - self._first

    def __getitem__(self, index):
        return self._dataset[self._first + index]

    def on_epoch_begin(self):
        self._dataset.on_epoch_begin()

    def on_epoch_end(self):
        self._dataset.on_epoch_end()
        if self.num_batches is not None:  # else one iterator goes through all epochs
            self._first = 0


def _replace(adapter, dataset):
    adapter.py_dataset = dataset
    if adapter.enqueuer is not None:
        adapter.enqueuer.py_dataset = dataset


def _batches_of_indices(adapter):
    count, size, order = adapter._num_samples, adapter._batch_size, adapter.order

    def draw():
        number = order.number or 0
        if order.number is not None:  # Keras does more than learn shapes
            order.number += 1
        generator = np.random.default_rng([order.seed, number])
        if adapter._shuffle != "batch":
            yield generator.permutation(count)
            return
        indices = np.arange(count)
        for start in range(0, count, size):
            generator.shuffle(indices[start : start + size])
        yield indices

    def batches(indices):
        shape = [None if count % size else size]
        starts = tf.data.Dataset.range(0, count, size)
        return starts.map(lambda start: tf.ensure_shape(indices[start : start + size], shape))

    spec = tf.TensorSpec([count], tf.int64)
    return tf.data.Dataset.from_generator(draw, output_signature=spec).flat_map(batches)


def _gathered(dataset, indices):
    """Keras's dataset of an array, with other indices: they come zipped with the whole array."""
    gather, pairs = None, dataset
    while len(tensorflow_data.inputs(pairs)) == 1:
        gather, pairs = pairs, tensorflow_data.inputs(pairs)[0]
    _, arrays = tensorflow_data.inputs(pairs)
    (gather,) = tensorflow_data.functions(gather)

    def rows(*pair):
        results = gather.function(*tensorflow_data.to_tensors(pairs.element_spec, pair))
        return tensorflow_data.from_tensors(gather.output_structure, results)

    batches = tf.data.Dataset.zip((indices, arrays)).map(rows, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.with_options(dataset.options()).prefetch(tf.data.AUTOTUNE)
