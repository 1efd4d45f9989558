"""Whatever `fit`, `evaluate` and `predict` take as data, on several workers as on one."""

import multiprocessing
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_scalecom as sc

SAMPLES, BATCH = 48, 24  # a batch splits evenly between two workers and between three
WORDS = np.array(["ant", "bee", "cat", "doe", "eel", ""])


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(SAMPLES, *shape)).astype("float32")


def classes(count, seed=1):
    return np.random.default_rng(seed).integers(0, count, SAMPLES)


def hidden(inputs):
    """A layer of 1,280 or more weights, so that there is something to compress."""
    return keras.layers.Dense(64, activation="relu")(inputs)


def classifier_loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


# --- The tasks: each takes an optimizer and returns a compiled model and the arguments of `fit` ---


def dict_of_numbers_ids_and_words(optimizer):
    number = keras.Input((20,), name="number")
    identity = keras.Input((), dtype="int32", name="id")
    word = keras.Input((), dtype="string", name="word")
    looked_up = keras.layers.StringLookup(vocabulary=list(WORDS[:-1]))(word)
    parts = [
        hidden(number),
        keras.layers.Embedding(50, 24)(identity),
        keras.layers.Embedding(6, 4)(looked_up),
    ]
    logits = keras.layers.Dense(3)(keras.layers.Concatenate()(parts))
    model = keras.Model({"number": number, "id": identity, "word": word}, logits)
    model.compile(optimizer, classifier_loss(), metrics=["accuracy"])
    x = {
        "number": numbers(20),
        "id": classes(50).astype("int32"),
        "word": tf.constant(WORDS[classes(6)]),
    }
    return model, {"x": x, "y": classes(3), "batch_size": BATCH}


def tuples_and_several_losses(optimizer):
    a, b = keras.Input((20,)), keras.Input((5,))
    shared = keras.layers.Concatenate()([hidden(a), b])
    model = keras.Model(
        (a, b),
        (keras.layers.Dense(3, name="class")(shared), keras.layers.Dense(2, name="size")(shared)),
    )
    model.compile(
        optimizer,
        loss=(classifier_loss(), "mse"),
        loss_weights=(1.0, 0.5),
        metrics=(["accuracy"], ["mae", "mse"]),
    )
    x = (numbers(20), numbers(5, seed=2))
    return model, {"x": x, "y": (classes(3), numbers(2, seed=3)), "batch_size": BATCH}


def nested_inputs_and_dict_of_outputs(optimizer):
    pair = (keras.Input((20,)), keras.Input((4, 5)))
    inputs = {"pair": pair, "one": keras.Input((3,), name="one")}
    parts = [hidden(pair[0]), keras.layers.Flatten()(pair[1]), inputs["one"]]
    shared = keras.layers.Concatenate()(parts)
    outputs = {"u": keras.layers.Dense(1)(shared), "v": keras.layers.Dense(3)(shared)}
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, loss={"u": "mse", "v": classifier_loss()}, metrics={"u": ["mae"]})
    x = {"pair": (numbers(20), numbers(4, 5, seed=2)), "one": numbers(3, seed=3)}
    y = {"u": numbers(1, seed=4), "v": classes(3)}
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    return model, {"x": dataset}


def simple_model(optimizer, **compile_arguments):
    model = keras.Sequential(
        [keras.Input((20,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(3)]
    )
    model.compile(optimizer, classifier_loss(), **compile_arguments)
    return model


def sample_weight(optimizer):
    model = simple_model(optimizer, metrics=["accuracy"], weighted_metrics=["accuracy"])
    weights = np.linspace(0, 3, SAMPLES)
    return model, {
        "x": numbers(20),
        "y": classes(3),
        "sample_weight": weights,
        "batch_size": BATCH,
    }


def class_weight(optimizer):
    weights = {0: 0.1, 1: 1.0, 2: 4.0}
    return simple_model(optimizer), {
        "x": numbers(20),
        "y": classes(3),
        "class_weight": weights,
        "batch_size": BATCH,
    }


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return numbers(20)[rows], classes(3)[rows]


def py_dataset(optimizer):
    return simple_model(optimizer, metrics=["accuracy"]), {"x": Batches(workers=2)}


@keras.saving.register_keras_serializable()
class LateBuilt(keras.Model):
    """Has no weights before it sees data, and a training step of its own."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(64, activation="relu")
        self.out = keras.layers.Dense(3)
        self.mean_loss = keras.metrics.Mean(name="mean_loss")

    def call(self, x, training=False):
        return self.out(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=logits)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.mean_loss.update_state(loss)
        return {"loss": self.mean_loss.result()}


def subclass_with_train_step(optimizer):
    model = LateBuilt()
    model.compile(optimizer, classifier_loss())
    return model, {"x": numbers(20), "y": classes(3), "batch_size": BATCH}


class MeanOfWords(keras.Model):
    """Takes ragged rows of word ids."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(50, 30)
        self.out = keras.layers.Dense(3)

    def call(self, ids):
        words = tf.ragged.map_flat_values(self.table, ids)
        return self.out(tf.reduce_sum(words, axis=1))


def ragged_rows(optimizer):
    model = MeanOfWords()
    model.compile(optimizer, classifier_loss())
    rows = tf.RaggedTensor.from_row_lengths(np.tile(classes(50, seed=2), 2)[:96], [1, 3] * 24)
    return model, {"x": tf.data.Dataset.from_tensor_slices((rows, classes(3))).batch(BATCH)}


TASKS = {
    task.__name__: task
    for task in (
        dict_of_numbers_ids_and_words,
        tuples_and_several_losses,
        nested_inputs_and_dict_of_outputs,
        sample_weight,
        class_weight,
        py_dataset,
        subclass_with_train_step,
        ragged_rows,
    )
}


def make_optimizer(compressed):
    inner = keras.optimizers.SGD(0.1)
    return sc.ScaleComOptimizer(inner, 10) if compressed else inner


def data_only(arguments):
    return {name: value for name, value in arguments.items() if name != "class_weight"}


def run_tasks(strategy, names, compressed):
    """Trains, evaluates and predicts; returns what came of it, by task."""
    results = {}
    for name in names:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model, arguments = TASKS[name](make_optimizer(compressed))
        history = model.fit(**arguments, epochs=2, shuffle=False, verbose=0).history
        results[name] = {
            "history": history,
            "weights": [w.numpy() for w in model.trainable_variables],
            "evaluate": model.evaluate(**data_only(arguments), verbose=0, return_dict=True),
            "predict": model.predict(
                arguments["x"], batch_size=arguments.get("batch_size"), verbose=0
            ),
        }
    return results


def assert_close(got, expected, message):
    for g, e in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-5, err_msg=message)


@pytest.fixture(scope="module")
def alone():
    """Results of one process without a strategy."""
    return run_tasks(tf.distribute.get_strategy(), TASKS, compressed=False)


def test_two_workers_train_as_one(cluster, alone):
    for results in cluster(2).run(run_tasks, list(TASKS), compressed=False, timeout=240):
        for name, result in results.items():
            assert_close(result, alone[name], name)


# What differs in how gradients come: of inputs of all kinds, of a step of its own, of slices.
COMPRESSED = ["nested_inputs_and_dict_of_outputs", "subclass_with_train_step", "ragged_rows"]


def test_compressed_workers_agree_on_all(cluster):
    first, *others = cluster(2).run(run_tasks, COMPRESSED, compressed=True, timeout=240)
    for name, result in first.items():
        before, after = result["history"]["loss"]
        assert after < before, name
        for other in others:
            for mine, theirs in zip(
                tf.nest.flatten(result), tf.nest.flatten(other[name]), strict=True
            ):
                np.testing.assert_array_equal(mine, theirs, err_msg=name)


# --- Batches one by one ------------------------------------------------------------------------


def train_on_batches(strategy, workers, compressed=False):
    """Each worker passes its own rows, of unequal number where they divide unevenly."""
    rank = strategy.extended._id_in_cluster if workers > 1 else 0
    x, y = np.array_split(numbers(20), workers)[rank], np.array_split(classes(3), workers)[rank]
    weights = np.array_split(np.linspace(0, 2, SAMPLES), workers)[rank]
    with strategy.scope():
        model = simple_model(make_optimizer(compressed), metrics=["accuracy"])
    return {
        "plain": model.train_on_batch(x, y),
        "sample_weight": model.train_on_batch(x, y, sample_weight=weights),
        "class_weight": model.train_on_batch(x, y, class_weight={0: 0.1, 1: 1.0, 2: 4.0}),
        "test": model.test_on_batch(x, y, sample_weight=weights),
        "predict": model.predict_on_batch(x),
        "weights": [w.numpy() for w in model.trainable_variables],
    }


def test_batches_one_by_one(cluster):
    keras.utils.set_random_seed(0)
    expected = train_on_batches(tf.distribute.get_strategy(), 1)
    for result in cluster(3).run(train_on_batches, 3, timeout=90):
        assert_close(result, expected, "batch by batch")


def train_on_generators(strategy, as_generator):
    """Five batches, once; then four epochs' worth of steps from one endless generator."""
    x, y = numbers(20), classes(3)

    def batches(count):
        for i in range(count):
            rows = slice(12 * (i % 4), 12 * (i % 4) + 12)
            yield x[rows], y[rows]

    def given(count):
        if as_generator:
            return {"x": batches(count)}
        parts = [np.concatenate(part) for part in zip(*batches(count), strict=True)]
        return {"x": parts[0], "y": parts[1], "batch_size": 12}

    with strategy.scope():
        model = simple_model(make_optimizer(False), metrics=["accuracy"])
    steps = {"epochs": 4, "steps_per_epoch": 2} if as_generator else {}
    model.fit(**given(5), shuffle=False, verbose=0)
    model.fit(**given(10**9 if as_generator else 8), shuffle=False, verbose=0, **steps)
    return {
        "weights": [w.numpy() for w in model.trainable_variables],
        "evaluate": model.evaluate(**given(5), verbose=0),
        "rows predicted": len(model.predict(given(5)["x"], verbose=0)),
    }


def test_a_generator_gives_all_its_batches(cluster):
    keras.utils.set_random_seed(0)
    expected = train_on_generators(tf.distribute.get_strategy(), as_generator=False)
    for result in cluster(3).run(train_on_generators, as_generator=True, timeout=90):
        assert_close(result, expected, "generator")


# --- Every sample once -------------------------------------------------------------------------

UNEVEN = [7, 3, 0]


def of_own(strategy, *arrays, batch=2):
    """This worker's rows of the arrays as a dataset of its own."""
    rank = strategy.extended._id_in_cluster
    rows = slice(sum(UNEVEN[:rank]), sum(UNEVEN[: rank + 1]))
    mine = tf.nest.map_structure(lambda a: a[rows], arrays if len(arrays) > 1 else arrays[0])
    return strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensor_slices(mine).batch(batch)
    )


def weighted_rows():
    total = sum(UNEVEN)
    return numbers(20)[:total], classes(3)[:total], np.linspace(0.5, 2, total).astype("float32")


def measure(strategy, steps_per_execution):
    """Evaluates, alone and as validation, a model that does not learn."""
    x, y, weights = weighted_rows()
    with strategy.scope():
        inputs = keras.Input((20,), name="features")
        model = keras.Model({"features": inputs}, keras.layers.Dense(3)(inputs))
        model.compile(
            sc.ScaleComOptimizer(keras.optimizers.SGD(0.0)),
            classifier_loss(),
            metrics=["accuracy"],
            weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="weighted")],
            steps_per_execution=steps_per_execution,
        )
    data = of_own(strategy, {"features": x}, y, weights)
    history = model.fit(data, validation_data=data, epochs=2, verbose=0).history
    return {
        "model": [w.numpy() for w in model.trainable_variables],
        "evaluate": model.evaluate(data, verbose=0, return_dict=True),
        "history": {name: values[-1] for name, values in history.items()},
    }


def test_measures_count_each_sample_once(cluster):
    x, y, weights = weighted_rows()
    for result in cluster(3).run(measure, steps_per_execution=2, timeout=90):
        kernel, bias = result["model"]
        logits = x @ kernel + bias
        log_likelihood = logits[np.arange(len(y)), y] - np.log(np.exp(logits).sum(axis=1))
        right = logits.argmax(axis=1) == y
        expected = {
            "loss": -(weights * log_likelihood).mean(),
            "accuracy": right.mean(),
            "weighted": (weights * right).sum() / weights.sum(),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(result["evaluate"][name], value, rtol=1e-5)
            np.testing.assert_allclose(result["history"][name], value, rtol=1e-5)
            np.testing.assert_allclose(result["history"]["val_" + name], value, rtol=1e-5)


def use_without_data(strategy):
    """What Keras's three methods say to data without a row, given in three ways; then trains."""
    rows = np.zeros((0, 20), "float32"), np.zeros(0, "int64")
    shared = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    own = strategy.distribute_datasets_from_function(lambda _: shared)
    with strategy.scope():
        model = simple_model("sgd")
    said = []
    for arguments in (rows, (shared,), (own,)):
        for method in (model.fit, model.evaluate, model.predict):
            given = arguments[:1] if method == model.predict else arguments
            with pytest.raises(ValueError, match="expected data") as error:
                method(*given, verbose=0)
            said.append(str(error.value))
    return said, model.fit(numbers(20), classes(3), verbose=0).history["loss"]


@pytest.mark.quick
def test_no_data_on_any_worker_is_an_error_on_all(cluster):
    results = cluster(2).run(use_without_data)
    assert results[0] == results[1]
    for said, method in zip(results[0][0], ["fit", "evaluate", "predict"] * 3, strict=True):
        assert said.startswith(f"{method}: expected data on one worker at least, received")


# --- What `predict` returns --------------------------------------------------------------------


def passes_through(strategy, **compile_arguments):
    with strategy.scope():
        number = keras.Input((), dtype="int32")
        word = keras.layers.StringLookup(vocabulary=["änt", "bee"], invert=True)(number)
        model = keras.Model(number, {"number": number * 1, "word": word})
        model.compile(**compile_arguments)
    return model


def predict(strategy, steps_per_execution):
    model = passes_through(strategy, steps_per_execution=steps_per_execution)
    rank = strategy.extended._id_in_cluster
    return {
        "shared": model.predict(np.arange(11, dtype="int32"), batch_size=4, verbose=0),
        "own": model.predict(of_own(strategy, np.arange(10, dtype="int32")), verbose=0),
        "batch": model.predict_on_batch(np.arange(rank + 1, dtype="int32") + 10 * rank),
    }


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_predict_returns_all_rows_in_order_on_each_worker(cluster, steps_per_execution):
    expected = {
        "shared": np.arange(11),
        # Step by step, and in a step by worker.
        "own": [0, 1, 7, 8, 2, 3, 9, 4, 5, 6],
        "batch": [0, 10, 11, 20, 21, 22],
    }
    words = {1: "änt".encode(), 2: b"bee"}
    for result in cluster(3).run(predict, steps_per_execution, timeout=90):
        for name, numbers_expected in expected.items():
            np.testing.assert_array_equal(result[name]["number"], numbers_expected)
            assert list(result[name]["word"]) == [words.get(n, b"[UNK]") for n in numbers_expected]


class Widths(keras.Model):
    """Rows as wide as the largest number of the batch."""

    def call(self, x):
        return tf.ones([tf.shape(x)[0], tf.reduce_max(x)])


class Rows(keras.Model):
    def call(self, x):
        return tf.RaggedTensor.from_row_lengths(tf.range(tf.reduce_sum(x)), x)


class Total(keras.Model):
    def call(self, x):
        return tf.reduce_sum(x)


def predict_what_cannot_be_gathered(strategy):
    data = tf.data.Dataset.from_tensor_slices(np.arange(1, 5, dtype="int32")).batch(4)
    messages = []
    for kind in (Widths, Rows, Total):
        with strategy.scope():
            model = kind()
        try:
            messages.append(str(model.predict(data, verbose=0)))
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            messages.append(str(error))
    return messages


def test_predictions_that_do_not_fit_together_are_refused(cluster):
    for widths, rows, total in cluster(2).run(predict_what_cannot_be_gathered, timeout=60):
        assert "expected tensors that differ between replicas along the gathered axis" in widths
        assert "expected dense tensors" in rows and "RaggedTensor" in rows
        assert "expected dense tensors of one dimension" in total


def end_a_forked_process(strategy):
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join(20)
    code = process.exitcode
    process.kill()
    return code


def test_forked_processes_end_when_they_are_told_to(cluster):
    """Or a worker waits for those that read a `PyDataset` for ever, at its own end."""
    assert cluster(2).run(end_a_forked_process) == [-signal.SIGTERM] * 2
