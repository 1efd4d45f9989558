"""Keras under `MultiWorkerMirroredStrategy`, with TensorFlow's and Keras's own optimizers."""

import gc
import textwrap
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_classifier import alone, assert_equal, build, data, train_on_arrays, weights
from worker_cluster import start_scripts
from worker_main import rewritten_graphs

# --- The same result as on one worker ----------------------------------------------------------


@pytest.mark.parametrize(("num_workers", "steps_per_execution"), [(1, 1), (2, 2), (3, 2)])
def test_training_equals_one_worker_with_the_whole_batch(cluster, num_workers, steps_per_execution):
    arguments = {"optimizer": "sgd", "steps_per_execution": steps_per_execution}
    expected = alone(**arguments)
    for result in cluster(num_workers).run(train_on_arrays, timeout=150, **arguments):
        assert_equal(result, expected)


@pytest.mark.parametrize("optimizer", ["adam", "loss scale"])
def test_other_optimizers_train_as_on_one_worker(cluster, optimizer):
    expected = alone(optimizer=optimizer)
    for result in cluster(2).run(train_on_arrays, timeout=150, optimizer=optimizer):
        assert_equal(result, expected)


def draws_of_an_initializer(strategy):
    draws = []

    def initializer(shape, dtype):
        draws.append(shape)
        return tf.ones(shape, dtype)

    with strategy.scope():
        keras.Variable(initializer, shape=(2, 3), dtype="float32")
    return draws


def test_a_variable_is_made_once(cluster):
    """As without a strategy, so that an initializer with a seed gives the same values."""
    assert cluster(2).run(draws_of_an_initializer) == [[(2, 3)], [(2, 3)]]


# --- Data that differ between workers, and their end -------------------------------------------


def train_on_uneven_data(strategy, samples, source, steps_per_execution):
    """Worker i has samples[i] samples of its own."""
    index = strategy.extended._id_in_cluster
    x, y = data(seed=index, samples=samples[index])
    samples_of_own = tf.data.Dataset.from_tensor_slices((x, y))
    if source == "from_function":
        own = strategy.distribute_datasets_from_function(lambda _: samples_of_own.batch(4))
    else:
        options = tf.data.Options()
        policies = tf.data.experimental.AutoShardPolicy
        options.experimental_distribute.auto_shard_policy = policies.OFF
        own = samples_of_own.batch(4 * len(samples)).with_options(options)
    with strategy.scope():
        model = build(steps_per_execution=steps_per_execution)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(own, epochs=3, validation_data=own, verbose=0).history
        evaluated = model.evaluate(own, verbose=0)
        predicted = model.predict(own, verbose=0)
    return {
        "history": history,
        "evaluate": evaluated,
        "predicted": np.sort(predicted[:, 0]),
        "weights": weights(model),
        "warnings": [str(w.message) for w in caught if "ran out of data" in str(w.message)],
    }


@pytest.mark.parametrize(
    ("source", "samples", "steps_per_execution"),
    [
        ("from_function", [18, 9], 1),
        ("from_function", [5, 17, 0], 3),
        ("tf.data", [0, 9], 3),
    ],
)
def test_an_epoch_ends_with_the_last_worker(cluster, source, samples, steps_per_execution):
    results = cluster(len(samples)).run(
        train_on_uneven_data, samples, source, steps_per_execution, timeout=150
    )
    first = results[0]
    for result in results:
        for mine, theirs in zip(result["weights"], first["weights"], strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert result["history"] == first["history"]
        assert result["warnings"] == []
        assert len(result["predicted"]) == sum(samples)
    for name, values in first["history"].items():
        assert np.isfinite(values).all(), name
    # Every sample counts once, wherever it lies.
    x, y = (
        np.concatenate(parts)
        for parts in zip(*(data(seed=i, samples=n) for i, n in enumerate(samples)), strict=True)
    )
    model = build()
    for variable, value in zip(model.trainable_variables, first["weights"], strict=True):
        variable.assign(value)
    loss, accuracy = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose(first["evaluate"], [loss, accuracy], rtol=1e-4)
    np.testing.assert_allclose(first["history"]["val_loss"][-1], loss, rtol=1e-4)
    expected = np.sort(model.predict(x, verbose=0)[:, 0])
    np.testing.assert_allclose(first["predicted"], expected, rtol=1e-4, atol=1e-6)


def train_on_arrays_of_own_size(strategy):
    x, y = data(samples=20 + 30 * strategy.extended._id_in_cluster)
    with strategy.scope():
        model = build()
    with pytest.warns(UserWarning, match="the same first batch on all workers"):
        model.fit(x, y, batch_size=10, epochs=2, verbose=0)
    return weights(model)


@pytest.mark.quick
def test_arrays_of_different_sizes_do_not_hang(cluster):
    first, second = cluster(2).run(train_on_arrays_of_own_size, timeout=90)
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def sum_to_the_end_of_data(strategy):
    """Reduces something that does not depend on the batch, then something that does."""
    samples = 9 + 4 * strategy.extended._id_in_cluster
    own = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensor_slices(data(samples=samples)[1]).batch(2)
    )
    with strategy.scope():
        free = tf.Variable(tf.ones([300]))

    @tf.function
    def step(iterator):
        def on_replica(batch):
            reduce = tf.distribute.get_replica_context().all_reduce
            return reduce("SUM", free.read_value()), reduce("SUM", tf.size(batch))

        return strategy.run(on_replica, args=(next(iterator),))

    seen = 0
    for _ in range(30):
        iterator = iter(own)
        while True:
            try:
                free_sum, size = step(iterator)
            except tf.errors.OutOfRangeError:
                break
            assert (free_sum.numpy() == 2).all()
            seen += int(size)
    return seen


def test_a_collective_without_data_does_not_leave_workers_out_of_step(cluster):
    assert cluster(2).run(sum_to_the_end_of_data, timeout=90) == [30 * (9 + 13)] * 2


@rewritten_graphs()
def count_steps(strategy):
    """How often a layer has counted, which needs no batch, in two epochs of three steps."""

    class Counter(keras.layers.Layer):
        def build(self, _):
            self.steps = self.add_weight(initializer="zeros", dtype="int32", trainable=False)

        def call(self, x):
            self.steps.assign_add(1)
            return x

    def batches():
        yield from [np.ones((2, 5), np.float32)] * 3 * len(strategy.extended.worker_devices)
        time.sleep(0.3)  # the next step waits for its batch, which does not come

    spec = tf.TensorSpec((2, 5), tf.float32)
    own = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_generator(batches, output_signature=spec).map(
            lambda x: (x, x)
        )
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((5,)), Counter(), keras.layers.Dense(5)])
        model.compile("sgd", "mse")
    model.fit(own, epochs=2, verbose=0)
    counts = strategy.experimental_local_results(model.layers[0].steps.value)
    return [int(count) for count in counts]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_without_a_batch_counts_nowhere(cluster, replicas):
    counts = cluster(2, logical_cpus=replicas).run(count_steps, timeout=90)
    assert counts == [[6] * replicas] * 2


def normalise_uneven_data(strategy, synchronized):
    index = strategy.extended._id_in_cluster
    x, y = data(seed=index, samples=[12, 22][index])
    own = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    )
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.0),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    losses = model.fit(own, epochs=2, verbose=0).history["loss"]
    return losses, [v.numpy() for v in model.variables[:4]]


@pytest.mark.parametrize("synchronized", [False, True])
def test_an_empty_batch_does_not_harm_batch_normalisation(cluster, synchronized):
    results = cluster(2).run(normalise_uneven_data, synchronized, timeout=90)
    (losses, (gamma, beta, mean, variance)), (_, others) = results
    assert np.isfinite(losses).all() and losses == results[1][0]
    np.testing.assert_array_equal(gamma, others[0])
    np.testing.assert_array_equal(beta, others[1])
    # With momentum 0 the moving mean is that of the last batch that has rows, on this worker or,
    # synchronised, anywhere.
    last_on_first, last_on_second = data(0, 12)[0][-4:], data(1, 22)[0][-2:]
    expected = last_on_second if synchronized else last_on_first
    np.testing.assert_allclose(mean, expected.mean(axis=0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(variance, expected.var(axis=0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(others[2], last_on_second.mean(axis=0), rtol=1e-3, atol=1e-5)


def train_on_strings(strategy):
    words = np.array(["a", "bb", "ccc", "dd", "e"] * 3)[: 15 - strategy.extended._id_in_cluster]
    own = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensor_slices(
            ({"word": words[:, None]}, np.char.str_len(words).astype("float32"))
        ).batch(4)
    )
    with strategy.scope():
        word = keras.Input((1,), dtype="string", name="word")
        bucket = keras.layers.Hashing(16)(word)
        out = keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(16, 4)(bucket)))
        model = keras.Model({"word": word}, out)
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
    return model.fit(own, epochs=3, verbose=0).history["loss"]


def test_strings_and_embeddings(cluster):
    """Strings cannot be reduced, and an embedding's gradient is a list of slices."""
    first, second = cluster(2).run(train_on_strings, timeout=90)
    assert first == second and first[-1] < first[0]


def time_to_end_iterators(strategy):
    dataset = tf.data.Dataset.from_tensor_slices(tf.zeros([64, 4])).batch(4).repeat()
    iterators = [iter(strategy.experimental_distribute_dataset(dataset)) for _ in range(8)]
    # The tuner's pauses double: it makes one of 5 s now.
    end = time.monotonic() + 6
    while time.monotonic() < end:
        for iterator in iterators:
            next(iterator)
        time.sleep(0.1)
    del iterator
    seconds = []
    while iterators:
        start = time.monotonic()
        iterators.pop()
        gc.collect()
        seconds.append(time.monotonic() - start)
    return seconds


@pytest.mark.slow
def test_the_end_of_an_iterator_does_not_wait_for_its_tuner(cluster):
    """A third of TensorFlow's own take 5 to 60 s to end here."""
    seconds = np.concatenate(cluster(2).run(time_to_end_iterators, timeout=300))
    assert seconds.max() < 3, seconds


# --- Loss scaling, XLA, several strategies -----------------------------------------------------


def train_with_nan_on_one_worker(strategy, optimizer):
    keras.config.set_dtype_policy("mixed_float16")
    with strategy.scope():
        model = build(optimizer=optimizer)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    seen = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((weights(model), float(model.optimizer.dynamic_scale.numpy())))

    x, y = data(samples=16)
    if strategy.extended._id_in_cluster == 1:
        x[4] = np.nan  # in the second of four batches
    own = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    )
    model.fit(own, epochs=1, verbose=0, callbacks=[Record()])
    return seen


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.quick
def test_a_nan_on_one_worker_skips_the_step_on_all(cluster, optimizer):
    first, second = cluster(2).run(train_with_nan_on_one_worker, optimizer, timeout=90)
    for (mine, my_scale), (theirs, their_scale) in zip(first, second, strict=True):
        assert my_scale == their_scale
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
            assert np.isfinite(a).all()
    scales = [scale for _, scale in first]
    assert scales == [scales[0], *[scales[0] / 2] * 3]
    (before, _), (skipped, _), (after, _), _ = first
    assert all((a == b).all() for a, b in zip(before, skipped, strict=True))
    assert any((a != b).any() for a, b in zip(skipped, after, strict=True))


def train_compiled_by_xla(strategy):
    with strategy.scope():
        model = build(jit_compile=True)
    x, y = data()
    try:
        model.fit(x, y, batch_size=30, verbose=0)
    except ValueError as error:
        return str(error)
    return "no error"


def test_xla_is_refused_before_it_crashes_the_process(cluster):
    for message in cluster(2).run(train_compiled_by_xla):
        assert "jit_compile=True" in message and "jit_compile=False" in message


def use_second_strategy(strategy):
    import tf_scalecom

    sums = []
    for size in (3, 5):
        with tf_scalecom.MultiWorkerMirroredStrategy().scope() as _:
            other = tf.distribute.get_strategy()
            # Differs between workers, so that the chief's value is seen to win.
            variable = tf.Variable(tf.fill([size], 1.0 + strategy.extended._id_in_cluster))
            flags = tf.Variable([True, False], trainable=False)
        sums.append(other.reduce("SUM", variable.numpy().sum(), axis=None).numpy())
        assert flags.numpy().tolist() == [True, False]
    return sums


def test_several_strategies_in_one_process(cluster):
    assert cluster(2).run(use_second_strategy) == [[6.0, 10.0]] * 2


# --- A worker that does not take part ----------------------------------------------------------

SLEEPER = """
    import os, sys, time
    import tensorflow as tf
    import tf_scalecom

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=4)
    strategy = tf_scalecom.MultiWorkerMirroredStrategy(communication_options=options)

    @tf.function
    def step():
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", 1.0))

    for i in range(20):
        if i == 10 and strategy.extended._id_in_cluster == 1:
            time.sleep(1000)
        step()
        time.sleep(0.3)  # all in all longer than the limit
"""


@pytest.mark.multi_worker
def test_a_worker_that_sleeps_makes_the_others_fail_in_finite_time(tmp_path):
    script = tmp_path / "sleeper.py"
    script.write_text(textwrap.dedent(SLEEPER))
    with start_scripts(script, 2, log_dir=tmp_path / "logs") as workers:
        deadline = time.monotonic() + 90
        while workers.poll()[0] is None and time.monotonic() < deadline:
            time.sleep(0.2)
        log = workers.workers[0].log_path.read_text()
        assert workers.poll()[0] not in (None, 0), log
    assert "worker 0 has waited" in log and "DeadlineExceededError" in log
    assert "in a collective for /job:worker/task:1, alive but in no collective" in log


# --- TensorFlow's tutorial ---------------------------------------------------------------------

# tensorflow.org/tutorials/distribute/multi_worker_with_keras, its mnist.py and main.py, with these
# changes: the import and the line of the strategy; digits drawn here, as nothing is downloaded.
TUTORIAL = """
    import json
    import os

    import numpy as np
    import tensorflow as tf
    import tf_scalecom

    def mnist_dataset(batch_size):
        rng = np.random.default_rng(0)
        y_train = rng.integers(0, 10, 1280)
        digits = rng.uniform(0, 255, (10, 28, 28))
        x_train = digits[y_train] * 0.5 + rng.uniform(0, 127, (1280, 28, 28))
        x_train = x_train / np.float32(255)
        y_train = y_train.astype(np.int64)
        train_dataset = tf.data.Dataset.from_tensor_slices(
            (x_train, y_train)).shuffle(60000).repeat().batch(batch_size)
        return train_dataset

    def build_and_compile_cnn_model():
        model = tf.keras.Sequential([
            tf.keras.layers.InputLayer(shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation='relu'),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation='relu'),
            tf.keras.layers.Dense(10)
        ])
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
            metrics=['accuracy'])
        return model

    per_worker_batch_size = 64
    tf_config = json.loads(os.environ['TF_CONFIG'])
    num_workers = len(tf_config['cluster']['worker'])

    strategy = tf_scalecom.MultiWorkerMirroredStrategy()

    global_batch_size = per_worker_batch_size * num_workers
    multi_worker_dataset = mnist_dataset(global_batch_size)

    with strategy.scope():
        multi_worker_model = build_and_compile_cnn_model()

    history = multi_worker_model.fit(multi_worker_dataset, epochs=3, steps_per_epoch=20)
    print("LOSSES", history.history['loss'])
"""


@pytest.mark.multi_worker
def test_the_tutorial_of_tensorflow_trains(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(TUTORIAL))
    with start_scripts(script, 2, log_dir=tmp_path / "logs") as workers:
        deadline = time.monotonic() + 150
        while None in workers.poll() and time.monotonic() < deadline:
            time.sleep(0.2)
        logs = [worker.log_path.read_text() for worker in workers.workers]
        assert workers.poll() == [0, 0], "\n".join(logs)
    losses = [log.split("LOSSES", 1)[1].split("]")[0] for log in logs]
    assert losses[0] == losses[1]
    first, _, last = (float(x) for x in losses[0].strip(" [").split(","))
    assert last < first
