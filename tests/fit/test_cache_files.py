"""Workers that keep a dataset in files keep each its own, with the same elements as in memory."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_scalecom.fit import cache_files

X = np.random.default_rng(0).normal(size=(12, 20)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def losses_of_epochs(strategy, path, from_function):
    keras.utils.set_random_seed(0)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).cache(path).batch(6)
    if from_function:
        data = strategy.distribute_datasets_from_function(lambda _: data.unbatch().batch(3))
    with strategy.scope():
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model.fit(data, epochs=2, verbose=0).history["loss"]


def with_files_and_in_memory(strategy, folder):
    # Alone, Keras warns at the end of data whose length it does not know.
    ways = (False, True) if strategy.num_replicas_in_sync > 1 else (False,)
    return [
        [losses_of_epochs(strategy, path, way) for path in (f"{folder}/{way}", "")] for way in ways
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_each_worker_has_its_own_file_and_learns_as_from_memory(cluster, workers, tmp_path):
    results = cluster(workers).run(with_files_and_in_memory, str(tmp_path), timeout=120)
    for ways in results:
        for from_file, from_memory in ways:
            assert from_file == from_memory
    names = {path.name.removesuffix(".index") for path in tmp_path.glob("*.index")}
    if workers > 1:
        assert names == {
            f"{way}-worker-{rank}-of-{workers}" for way in (False, True) for rank in range(workers)
        }
    else:
        assert names <= {"False"}
    assert not list(tmp_path.glob("*.lockfile"))


def test_all_files_of_a_dataset_and_nothing_else_of_it_change(tmp_path):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), default_value=-1
    )

    def dataset():
        def words():
            yield from "abba"

        made = tf.data.Dataset.from_generator(words, output_signature=tf.TensorSpec((), tf.string))
        numbers = made.map(table.lookup).cache(str(tmp_path / "numbers"))
        doubled = made.map(
            lambda word: tf.ensure_shape(tf.numpy_function(lambda w: w * 2, [word], tf.string), [])
        )
        doubled = doubled.cache(str(tmp_path / "doubled")).cache().shuffle(4, seed=1)
        options = tf.data.Options()
        options.autotune.ram_budget = 12345
        return tf.data.Dataset.zip(numbers, doubled).batch(2).with_options(options)

    renamed = cache_files.one_per_worker(dataset(), 1, 3)  # lives on without the one it is made of
    expected = list(dataset().as_numpy_iterator())
    for path in tmp_path.iterdir():
        path.unlink()
    for (numbers, words), (n, w) in zip(renamed.as_numpy_iterator(), expected, strict=True):
        np.testing.assert_array_equal(numbers, n)
        np.testing.assert_array_equal(words, w)
    assert {path.name for path in tmp_path.glob("*.index")} == {
        "numbers-worker-1-of-3.index", "doubled-worker-1-of-3.index"
    }  # fmt: skip
    assert renamed.options().autotune.ram_budget == 12345
    assert renamed.element_spec == dataset().element_spec


def test_without_a_file_the_dataset_is_left_alone():
    dataset = tf.data.Dataset.range(3).cache().batch(2)
    assert cache_files.one_per_worker(dataset, 0, 2) is dataset
