"""The order in which `fit(shuffle=True)` gives arrays and `PyDataset`s, alike on all workers.

Keras draws that of arrays from TensorFlow's generator and that of `PyDataset`s from Python's, which
need not be alike: one has no seed, and from the other a worker that has loaded a model alone has
drawn more. So the workers agree on a seed when a call to `fit` begins; the order of each epoch
comes from that and the epoch's number. Where TensorFlow's global seed is set, the same on all
workers, arrays keep Keras's order, that of a training in one process.
"""

import itertools
import random
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.compat import tensorflow_data
from tf_scalecom.compat.keras_trainer import ArrayDataAdapter, DataAdapter, PyDatasetAdapter
from tf_scalecom.compat.tensorflow_runtime import global_seed


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
        return _gathered(dataset, _batches_of_indices(adapter, seed))
    adapter.shuffle = False
    adapter.py_dataset = _Shuffled(adapter.py_dataset, seed)
    if adapter.enqueuer is not None:
        adapter.enqueuer.shuffle = False
        adapter.enqueuer.py_dataset = adapter.py_dataset
    return dataset


def begin_at(adapter: DataAdapter, epoch: int) -> None:
    """Has the next pass over an adapter's arrays be that of an epoch, after a restart, say."""
    adapter.epochs = itertools.count(epoch)


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

    def __init__(self, dataset, seed):
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset, self._seed = dataset, seed
        self._epoch, self._order = 0, []

    @property
    def num_batches(self):
        return self._dataset.num_batches

    def __getitem__(self, index):
        # Drawn where it is needed: the number of batches is the user's to change between epochs,
        # and each process that reads for this one comes to the same order.
        if len(self._order) != self.num_batches:
            order = list(range(self.num_batches))
            random.Random(f"{self._seed} {self._epoch}").shuffle(order)
            self._order = order
        return self._dataset[self._order[index]]

    def on_epoch_begin(self):
        self._dataset.on_epoch_begin()

    def on_epoch_end(self):
        self._dataset.on_epoch_end()
        self._epoch, self._order = self._epoch + 1, []


def _batches_of_indices(adapter, seed):
    count, size = adapter._num_samples, adapter._batch_size
    begin_at(adapter, 0)

    def draw():
        generator = np.random.default_rng([seed, next(adapter.epochs)])
        if adapter._shuffle != "batch":
            yield generator.permutation(count)
            return
        order = np.arange(count)
        for start in range(0, count, size):
            generator.shuffle(order[start : start + size])
        yield order

    def batches(order):
        shape = [None if count % size else size]
        starts = tf.data.Dataset.range(0, count, size)
        return starts.map(lambda start: tf.ensure_shape(order[start : start + size], shape))

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
