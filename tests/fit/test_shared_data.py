"""Each sample counts once in an epoch where all workers are given all data, seed or none."""

import random
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

import tf_scalecom as sc
from tf_scalecom.base import random_generators
from tf_scalecom.base.random_generators import SEED_VARIABLE
from tf_scalecom.fit import shared_order, shared_seed
from tf_scalecom.fit.alike_data import all_read_all, draws_values, in_one_order

SAMPLES, BATCH = 44, 8  # six batches, the last one a part of one
BATCHES = -(-SAMPLES // BATCH)
X = np.arange(SAMPLES, dtype="float32")[:, None]


class Batches(keras.utils.PyDataset):
    """Batches whose samples are put in another order after each epoch, if there is a generator."""

    def __init__(self, generator=None, **kwargs):
        super().__init__(**kwargs)
        self.generator, self.order = generator, np.arange(SAMPLES)

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        return X[rows], X[rows]

    def on_epoch_end(self):
        if self.generator is not None:
            self.generator.shuffle(self.order)


def generated(epochs):
    for _ in range(epochs):
        order = np.random.permutation(SAMPLES)
        for start in range(0, SAMPLES, BATCH):
            rows = order[start : start + BATCH]
            yield X[rows], X[rows]


def samples():
    return tf.data.Dataset.from_tensor_slices((X, X))


def windows():
    """Each sample is a window of one row."""
    return keras.utils.timeseries_dataset_from_array(X, X, 1, batch_size=BATCH, shuffle=True).map(
        lambda x, y: (x[:, 0], y)
    )


# What each gives to `fit`. Two epochs.
DATA = {
    "arrays": lambda: {"x": X, "y": X, "batch_size": BATCH},
    "arrays, class weights": lambda: {
        "x": X,
        "y": X,
        "batch_size": BATCH,
        "class_weight": {0: 2.0},
    },
    "arrays, by batch": lambda: {"x": X, "y": X, "batch_size": BATCH, "shuffle": "batch"},
    "shuffle": lambda: {"x": samples().shuffle(SAMPLES).batch(BATCH)},
    "shuffle of batches": lambda: {"x": samples().batch(BATCH).shuffle(3)},
    "repeat": lambda: {
        "x": samples().shuffle(SAMPLES).batch(BATCH).repeat(),
        "steps_per_epoch": BATCHES,
    },
    "mixture": lambda: {
        "x": tf.data.Dataset.sample_from_datasets(
            [samples().take(20), samples().skip(20)], stop_on_empty_dataset=False
        ).batch(BATCH)
    },
    "windows": lambda: {"x": windows()},
    "PyDataset": lambda: {"x": Batches()},
    "PyDataset, NumPy's order": lambda: {"x": Batches(np.random)},
    "PyDataset, threads": lambda: {"x": Batches(np.random, workers=2, max_queue_size=3)},
    "generator": lambda: {"x": generated(2), "steps_per_epoch": BATCHES},
}


SEEDED = ["arrays", "shuffle", "PyDataset, threads"]


class Seen(keras.layers.Layer):
    """Counts what passes through in training."""

    def build(self, shape):
        self.count = self.add_weight(shape=(SAMPLES,), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            numbers = keras.ops.cast(x[:, 0], "int32")
            self.count.assign_add(keras.ops.sum(keras.ops.one_hot(numbers, SAMPLES), axis=0))
        return x


def forget_seeds():
    """As in a process that has just started, without the launcher."""
    tf.random.set_seed(None)
    random.seed()
    np.random.seed()
    random_generators.start_from_launcher()


def counts(strategy, seed):
    """How often each sample was seen on this worker, by the names of `DATA`."""
    if seed is None:
        forget_seeds()
        strategy = sc.MultiWorkerMirroredStrategy()
    else:
        keras.utils.set_random_seed(seed)
    with strategy.scope():
        inputs = keras.Input((1,))
        seen = Seen()
        model = keras.Model(inputs, keras.layers.Dense(1)(seen(inputs)))
        model.compile(keras.optimizers.SGD(0.0), "mse")
    if strategy.extended._id_in_cluster == 0:
        random.random()  # the first worker does more than the others
    result = {}
    names = DATA if seed is None else SEEDED
    for name in names:
        model.fit(**DATA[name](), epochs=2, verbose=0)
        result[name] = seen.count.numpy()
        seen.count.assign(np.zeros(SAMPLES))
    model.fit(X, X, batch_size=BATCH, validation_split=0.25, epochs=2, verbose=0)
    result["validation split"] = seen.count.numpy()
    return result


@pytest.mark.parametrize("workers, seed", [(2, None), (3, 5)])
def test_each_sample_counts_once(cluster, workers, seed):
    results = cluster(workers).run(counts, seed, timeout=240)
    for name in results[0]:
        total = np.sum([result[name] for result in results], axis=0)
        expected = np.full(SAMPLES, 2)
        if name == "validation split":
            expected[SAMPLES * 3 // 4 :] = 0
        np.testing.assert_array_equal(total, expected, err_msg=name)


# --- What differs nevertheless ------------------------------------------------------------------


class Augmented(Batches):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + self.generator.normal(size=x.shape), y

    def on_epoch_end(self):
        pass


def words(rank):
    order = np.random.default_rng(rank).permutation(SAMPLES)
    rows = tf.RaggedTensor.from_row_lengths(np.repeat(order, 2).astype(str), [2] * SAMPLES)
    return tf.data.Dataset.from_tensor_slices(({"words": rows, "number": X[order]}, X)).batch(BATCH)


def seeded_apart(rank):
    tf.random.set_seed(rank)
    dataset = samples().shuffle(SAMPLES).batch(BATCH)
    tf.random.set_seed(0)
    return dataset


def own(strategy, rank):
    return strategy.distribute_datasets_from_function(
        lambda _: samples().shard(2, rank).batch(BATCH // 2)
    )


UNLIKE = {
    "order of its own after an epoch": lambda rank: {"x": Batches(np.random.default_rng(rank))},
    "array of its own": lambda rank: {"x": X[rank::2], "y": X[rank::2]},
    "generator": lambda rank: {"x": ((X + rank, X + rank) for _ in range(4)), "steps_per_epoch": 2},
    "seed of its own": lambda rank: {"x": samples().shuffle(SAMPLES, seed=rank + 1).batch(BATCH)},
    "global seed of its own": lambda rank: {"x": seeded_apart(rank)},
}
ALIKE = {
    "arrays": lambda rank: {"x": X, "y": X},
    "augmented in its own way": lambda rank: {"x": Augmented(np.random.default_rng(rank))},
}


def warned(strategy):
    """For each of the above and a few more, the warnings."""
    rank = strategy.extended._id_in_cluster
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")

    def warnings_of(function, *args, **kwargs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(*args, **kwargs, verbose=0)
        messages = [str(warning.message) for warning in caught]
        return [message for message in messages if "first batch" in message]

    result = {
        name: warnings_of(model.fit, **make(rank), epochs=1)
        for name, make in (UNLIKE | ALIKE).items()
    }
    result["own data"] = warnings_of(model.fit, own(strategy, rank))
    result["evaluate"] = warnings_of(model.evaluate, X + rank, X + rank)
    return result


@pytest.mark.slow
def test_data_that_differ_are_a_warning(cluster):
    first, second = cluster(2).run(warned, timeout=120)
    assert first == second
    for name in [*UNLIKE, "evaluate"]:
        (message, *_) = first[name] or [""]
        assert "another one than on worker 0 on worker 1" in message, name
        assert "set_random_seed" in message and "distribute_datasets_from_function" in message
    for name in [*ALIKE, "own data"]:
        assert not first[name], name


def compare(strategy):
    """Compares batches of words, ragged rows, dicts and None."""
    from tf_scalecom.fit.alike_data import warn_unless_alike

    rank, workers = strategy.extended._id_in_cluster, strategy.extended.workers
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in (7, rank):
            x, _ = next(iter(words(seed)))
            assert warn_unless_alike(x, workers, "fit")
            assert warn_unless_alike((x["words"], None, None), workers, "fit")
            assert warn_unless_alike(tf.sparse.from_dense(x["number"]), workers, "fit")
            caught.append(None)
        assert not warn_unless_alike(None if rank else x, workers, "fit")
    return [0 if warning is None else 1 for warning in caught]


def test_batches_of_any_structure_are_compared(cluster):
    assert cluster(2).run(compare) == [[0, 1, 1, 1, 0, 1]] * 2


def test_an_augmentation_says_nothing_of_the_order():
    images = tf.data.Dataset.from_tensor_slices(np.ones((4, 2, 2, 1), np.float32)).shuffle(4)
    assert not draws_values(images.batch(2))
    assert draws_values(images.map(tf.image.random_flip_left_right).batch(2))
    assert draws_values(images.map(lambda x: tf.image.stateless_random_crop(x, (1, 1, 1), (1, 2))))
    generator = tf.random.Generator.from_seed(1)
    assert draws_values(images.map(lambda x: x + generator.normal([])))
    # An order is no value: so Keras shuffles arrays where there is a seed.
    order = tf.data.Dataset.from_tensors(tf.range(4)).map(tf.random.shuffle)
    assert not draws_values(order)


def test_files_that_are_shared_out_need_no_common_order(tmp_path):
    files = [str(tmp_path / str(i)) for i in range(2)]
    for file in files:
        with tf.io.TFRecordWriter(file) as writer:
            writer.write(b"record")
    records = tf.data.TFRecordDataset(files)
    names = tf.data.Dataset.from_tensor_slices(files)
    assert not all_read_all(records.shuffle(10).batch(2))
    assert not all_read_all(names.interleave(tf.data.TextLineDataset).map(tf.strings.length))
    assert all_read_all(names.map(tf.io.read_file).batch(2))
    for policy, expected in (("DATA", True), ("FILE", False), ("OFF", False)):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = getattr(
            tf.data.experimental.AutoShardPolicy, policy
        )
        assert all_read_all(records.with_options(options)) == expected


def test_threads_do_not_decide_on_the_order_of_what_all_read():
    options = tf.data.Options()
    options.deterministic = False
    for dataset, expected in (
        (samples().with_options(options), True),
        (tf.data.TextLineDataset("file").with_options(options), False),
        (samples(), None),
    ):
        assert in_one_order(dataset).options().deterministic is expected


# --- Orders and seeds, in one process ------------------------------------------------------------


def orders(shuffle, seed, epochs=3, first=0):
    adapter = ArrayDataAdapter(X[:, 0], batch_size=BATCH, shuffle=shuffle)
    dataset = shared_order.shuffled_alike(adapter, adapter.get_tf_dataset(), seed)
    shared_order.begin_at(adapter, first)
    return [[batch.numpy().tolist() for batch in dataset] for _ in range(epochs)]


def test_an_order_of_arrays_is_of_its_epoch():
    epochs = orders(True, 3)
    assert orders(True, 3) == epochs and orders(True, 4) != epochs
    assert orders(True, 3, epochs=1, first=2) == epochs[2:]  # after a restart
    assert epochs[0] != epochs[1] != epochs[2]
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == X[:, 0].tolist()
    (batches,) = orders("batch", 3, epochs=1)
    in_order = [part.tolist() for part in np.split(X[:, 0], range(BATCH, SAMPLES, BATCH))]
    assert batches != in_order
    assert [sorted(batch) for batch in batches] == in_order


@pytest.mark.parametrize("workers", [1, 2])
def test_an_order_of_batches_is_new_in_each_epoch(workers):
    adapter = PyDatasetAdapter(Batches(workers=workers), shuffle=True)
    dataset = shared_order.shuffled_alike(adapter, adapter.get_tf_dataset(), 3)
    adapter.on_epoch_begin()
    next(iter(dataset))  # as Keras does to learn shapes
    adapter.on_epoch_end()
    epochs = []
    for _ in range(3):
        adapter.on_epoch_begin()
        shared_order.forget_read_ahead(adapter)
        epochs.append([int(x[0, 0]) // BATCH for x, _ in dataset])
        adapter.on_epoch_end()
    assert all(sorted(epoch) == list(range(BATCHES)) for epoch in epochs)
    assert epochs[0] != epochs[1] or epochs[1] != epochs[2]


def test_an_augmentation_is_another_one_in_each_epoch(cluster):
    first, second = cluster(2).run(augmented_twice)[0]
    assert first != second


def augmented_twice(strategy):
    forget_seeds()
    shared_seed.agree(strategy.extended.workers)
    dataset = samples().shuffle(SAMPLES, reshuffle_each_iteration=False)
    dataset = dataset.map(lambda x, y: x + tf.random.uniform([1]))
    return [[float(x[0]) for x in dataset] for _ in range(2)]


class Peers:
    """Workers of which the second has other generators and another seed."""

    def gather(self, value, purpose):
        seed, digests = value
        return [[11, ["other", "other"]], [seed, digests]]


@pytest.fixture
def own_random_state(monkeypatch):
    states = random.getstate(), np.random.get_state()
    monkeypatch.setattr(shared_seed.random_seeds, "get_seed", shared_seed._tensorflow_get_seed)
    yield
    tf.random.set_seed(None)
    random.setstate(states[0])
    np.random.set_state(states[1])


def drawn():
    return random.random(), np.random.random()


def drawn_from(seed):
    random.seed(seed)
    np.random.seed(seed)
    return drawn()


def test_what_nobody_has_seeded_is_seeded(own_random_state):
    forget_seeds()
    shared_seed.agree(Peers())
    assert drawn() == drawn_from(11)


def test_what_the_user_has_seeded_stays(own_random_state):
    forget_seeds()
    np.random.seed(5)
    shared_seed.agree(Peers())
    assert drawn() == (drawn_from(11)[0], drawn_from(5)[1])

    keras.utils.set_random_seed(6)
    random_generators.start_from_launcher()
    shared_seed.agree(Peers())
    assert drawn() == drawn_from(6)
    datasets = [list(tf.data.Dataset.range(9).shuffle(9).as_numpy_iterator()) for _ in range(2)]
    keras.utils.set_random_seed(6)
    assert datasets[0] == list(tf.data.Dataset.range(9).shuffle(9).as_numpy_iterator())


def test_launcher_seeds_as_the_package_is_imported(own_random_state, monkeypatch):
    monkeypatch.setenv(SEED_VARIABLE, "12")
    random_generators.start_from_launcher()
    assert drawn() == drawn_from(12)
    monkeypatch.setenv(SEED_VARIABLE, "-1")
    with pytest.raises(ValueError, match=r"0 to 4294967295.*TF_SCALECOM_SEED, received '-1'"):
        random_generators.start_from_launcher()
