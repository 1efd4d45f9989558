"""TensorFlow never writes into NumPy memory that somebody else can see."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_scalecom as sc
from tf_scalecom.fit import numpy_memory

numpy_memory.copy_what_others_see()  # as with the first strategy

ROWS, COLUMNS, BATCH = 64, 16, 8  # a row is as long as TensorFlow aligns to


def aligned(*shape):
    """A float32 array that TensorFlow takes without a copy, its memory nobody else's."""
    size = 4 * int(np.prod(shape))
    memory = np.zeros(size + numpy_memory.ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % numpy_memory.ALIGNMENT
    return memory[start : start + size].view("float32").reshape(shape)


def filled():
    array = aligned(ROWS, COLUMNS)
    array[:] = np.arange(ROWS * COLUMNS, dtype="float32").reshape(ROWS, COLUMNS)
    return array


def use_halves(dataset):
    """Has TensorFlow compute with slices that alone hold the memory of the batch."""
    return np.concatenate([t.numpy() for t in dataset.map(lambda t: tf.tanh(t[: BATCH // 2]))])


def from_generator(array):
    views = (array[i : i + BATCH] for i in range(0, ROWS, BATCH))
    spec = tf.TensorSpec((None, COLUMNS))
    return tf.data.Dataset.from_generator(lambda: views, output_signature=spec)


def numpy_function(array, function=tf.numpy_function):
    def batch(i):
        return function(lambda i: array[i : i + BATCH], [i], tf.float32)

    return tf.data.Dataset.range(0, ROWS, BATCH).map(batch)


def tuples_with_strings(array):
    views = ((array[i : i + BATCH], np.array(["word"])) for i in range(0, ROWS, BATCH))
    spec = (tf.TensorSpec((None, COLUMNS)), tf.TensorSpec((1,), tf.string))
    dataset = tf.data.Dataset.from_generator(lambda: views, output_signature=spec)
    return dataset.map(lambda x, word: x + tf.cast(tf.strings.length(word[0]) - 4, tf.float32))


def arrays_that_are_kept(array):
    kept = [array[i : i + BATCH] for i in range(0, ROWS, BATCH)]
    for batch in kept:
        batch.flags.writeable = False
    spec = tf.TensorSpec((None, COLUMNS))
    return tf.data.Dataset.from_generator(lambda: iter(kept), output_signature=spec)


@pytest.mark.parametrize(
    "make_dataset", [from_generator, numpy_function, tuples_with_strings, arrays_that_are_kept]
)
def test_views_keep_their_values(make_dataset):
    array = filled()
    result = use_halves(make_dataset(array))
    np.testing.assert_array_equal(array, filled())
    firsts = filled().reshape(-1, BATCH, COLUMNS)[:, : BATCH // 2].reshape(-1, COLUMNS)
    np.testing.assert_allclose(result, np.tanh(firsts), rtol=1e-6)


def test_a_buffer_that_is_filled_again_does_not_change_earlier_batches():
    def fill():
        buffer = aligned(BATCH, COLUMNS)
        for i in range(20):
            buffer[:] = i
            yield buffer

    spec = tf.TensorSpec((BATCH, COLUMNS))
    dataset = tf.data.Dataset.from_generator(fill, output_signature=spec).prefetch(10)
    assert [t.numpy()[0, 0] for t in dataset] == list(range(20))


def places_taken_over(make):
    """Of eight arrays, how many TensorFlow took without a copy."""
    places, tensors = [], []

    def batches():
        for _ in range(8):
            yield make(places)

    spec = tf.TensorSpec((BATCH, COLUMNS))
    for tensor in tf.data.Dataset.from_generator(batches, output_signature=spec):
        tensors.append(tensor)  # or a later array would be where an earlier one was
        places.append(-np.asarray(memoryview(tensor)).ctypes.data)
    return sum(-place in places for place in places if place > 0)


def fresh(places):
    rejected = []
    while True:
        array = np.empty((BATCH, COLUMNS), "float32")
        if array.ctypes.data % numpy_memory.ALIGNMENT == 0:
            places.append(array.ctypes.data)
            return array
        rejected.append(array)


def view_of_fresh(places):
    array = aligned(BATCH, COLUMNS)
    places.append(array.ctypes.data)
    return array


def test_what_nobody_else_holds_is_not_copied():
    assert places_taken_over(fresh) == 8
    assert places_taken_over(view_of_fresh) == 8

    kept = []

    def keep(places):
        kept.append(view_of_fresh(places))
        return kept[-1]

    assert places_taken_over(keep) == 0


def test_alignment_is_that_of_tensorflow():
    flag = f"-DEIGEN_MAX_ALIGN_BYTES={numpy_memory.ALIGNMENT}"
    assert flag in tf.sysconfig.get_compile_flags()


READ_ONLY = """
import sys, numpy as np, tensorflow as tf
import tf_scalecom
tf_scalecom.MultiWorkerMirroredStrategy()
x = np.load(sys.argv[1], mmap_mode="r")
views = lambda: (x[i : i + 8] for i in range(0, 64, 8))
ds = tf.data.Dataset.from_generator(views, output_signature=tf.TensorSpec((None, 16)))
print(float(sum(tf.reduce_sum(t) for t in ds.map(lambda t: tf.tanh(t[:4])))))
"""


@pytest.mark.slow
def test_a_read_only_map_does_not_end_the_process(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((ROWS, COLUMNS), "float32"))
    process = subprocess.run(
        [sys.executable, "-c", READ_ONLY, tmp_path / "x.npy"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert float(process.stdout) == pytest.approx(ROWS / 2 * COLUMNS * np.tanh(1), rel=1e-5)


class Views(keras.utils.PyDataset):
    def __init__(self, array, **kwargs):
        super().__init__(**kwargs)
        self.array = array

    def __len__(self):
        return len(self.array) // BATCH

    def __getitem__(self, index):
        rows = self.array[index * BATCH : (index + 1) * BATCH]
        return rows, rows[:, :1]


def use_map(strategy, folder):
    """Trains, evaluates and predicts on a map of a file; returns the file's values afterwards."""
    path = f"{folder}/{strategy.extended._id_in_cluster}.npy"
    np.save(path, filled())
    array = np.load(path, mmap_mode="r+")
    with strategy.scope():
        model = keras.Sequential([keras.Input((COLUMNS,)), keras.layers.Dense(1)])
        model.compile(sc.ScaleComOptimizer(keras.optimizers.SGD(0.0)), "mse")
    for workers in (1, 2):
        data = Views(array, workers=workers)
        model.fit(data, epochs=2, verbose=0)
        model.evaluate(data, verbose=0)
        model.predict(data, verbose=0)
    model.fit((data[i] for i in range(8)), steps_per_epoch=8, verbose=0)
    array.flush()
    return np.load(path)


def test_a_map_of_a_file_leaves_the_file_alone(cluster, tmp_path):
    for values in cluster(3).run(use_map, str(tmp_path), timeout=120):
        np.testing.assert_array_equal(values, filled())
