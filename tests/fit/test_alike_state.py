"""Workers that hold other weights, optimizers or rates are found before they train on so."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from digits import digest
from logged_warnings import warnings_logged

import tf_scalecom as sc

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Shift(keras.layers.Layer):
    """Takes a trained shift, or a moving one, from the rows that it sees first."""

    def __init__(self, trained, aggregation="none", name="shift"):
        super().__init__(name=name)
        self.trained, self.aggregation = trained, aggregation

    def build(self, shape):
        arguments = {"shape": shape[1:], "initializer": "zeros", "aggregation": self.aggregation}
        self.mean = self.add_weight(name="mean", trainable=self.trained, **arguments)

    def call(self, x, training=False):
        if training:
            unset = keras.ops.all(self.mean == 0)
            self.mean.assign(keras.ops.where(unset, -keras.ops.mean(x, axis=0), self.mean))
        return x + self.mean


def build(strategy, *layers, optimizer=None, **arguments):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), *[layer() for layer in layers], keras.layers.Dense(1, name="last")]
        )
        model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), "mse", **arguments)
    return model


def fit(model, *callbacks, epochs=2, **arguments):
    arguments = {"batch_size": 8, "verbose": 0, "shuffle": False, **arguments}
    return model.fit(X, Y, epochs=epochs, callbacks=list(callbacks), **arguments)


def on_second_worker(strategy, *callbacks):
    return callbacks if strategy.extended._id_in_cluster == 1 else ()


# --- Found ---------------------------------------------------------------------------------------


def weights_of_one(strategy):
    model = build(strategy)
    for _ in on_second_worker(strategy, 1):
        model.set_weights([w + 1 for w in model.get_weights()])
    fit(model)


def frozen_weights_of_one(strategy):
    model = build(strategy, lambda: keras.layers.Dense(4, trainable=False, name="frozen"))
    for _ in on_second_worker(strategy, 1):
        model.layers[0].set_weights([w + 1 for w in model.layers[0].get_weights()])
    fit(model)


def optimizer_of_one(strategy):
    model = build(strategy)
    fit(model, epochs=1)
    for _ in on_second_worker(strategy, 1):
        model.optimizer.variables[-1].assign(model.optimizer.variables[-1] + 1)
    fit(model)


def optimizer_inside_of_one(strategy):
    with strategy.scope():
        inner = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer = sc.ScaleComOptimizer(inner, compression_ratio=2)
    model = build(strategy, optimizer=optimizer)
    fit(model, epochs=1)
    for _ in on_second_worker(strategy, 1):
        inner.variables[-1].assign(inner.variables[-1] + 1)
    fit(model)


def rate_of_one(strategy):
    model = build(strategy)
    fit(model, epochs=1)
    model.optimizer.learning_rate = 0.1 * (1 + len(on_second_worker(strategy, 1)))
    fit(model)


def schedule_of_one(strategy):
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 + epoch)
    fit(build(strategy), *on_second_worker(strategy, schedule))


def plateau_of_one(strategy):
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=1e6, factor=0.5)
    fit(build(strategy), *on_second_worker(strategy, plateau), epochs=3)


def last_plateau_of_one(strategy):
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=1e6, factor=0.5)
    fit(build(strategy), *on_second_worker(strategy, plateau))


class Warmup(keras.callbacks.Callback):
    """Changes the rate for one step."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.2 if batch == 1 else 0.1


def warmup_of_one(strategy):
    fit(build(strategy), *on_second_worker(strategy, Warmup()))


class SetsWeights(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([w * 0.9 for w in self.model.get_weights()])


def callback_of_one(strategy):
    fit(build(strategy), *on_second_worker(strategy, SetsWeights()))


def weight_assigned_in_call(strategy):
    fit(build(strategy, lambda: Shift(trained=True)))


RATE = "Set a learning rate on all workers alike"
WEIGHT = 'Load or set weights on all .* aggregation="mean"'
FOUND = {
    weights_of_one: ("before epoch 1", "last/kernel: another value on worker 1", WEIGHT),
    frozen_weights_of_one: ("before epoch 1", "frozen/kernel: another value on worker 1", WEIGHT),
    optimizer_of_one: ("before epoch 1", "sgd/.*momentum: another value", "Load, restore or set"),
    optimizer_inside_of_one: ("before epoch 1", "momentum: another value", "Load, restore or set"),
    rate_of_one: ("before epoch 1", r"rate: 0\.1 \(worker 0\), 0\.2 \(worker 1\)", RATE),
    schedule_of_one: ("before epoch 2", r"rate: 0\.1 \(worker 0\), 1\.1 \(worker 1\)", RATE),
    plateau_of_one: ("before epoch 3", r"rate: 0\.1 \(worker 0\), 0\.05 \(worker 1\)", RATE),
    last_plateau_of_one: ("after the last epoch", r"rate: 0\.1.*, 0\.05", RATE),
    warmup_of_one: ("before epoch 2", "last/kernel: another value on worker 1", WEIGHT),
    callback_of_one: ("before epoch 2", "last/kernel: another value on worker 1", WEIGHT),
    weight_assigned_in_call: ("before epoch 2", "shift/mean: another value on worker 1", WEIGHT),
}


def messages_of_unlike(strategy):
    messages = []
    for case in FOUND:
        keras.utils.set_random_seed(0)
        keras.utils.clear_session(free_memory=False)
        with pytest.raises(ValueError) as error:
            case(strategy)
        messages.append(str(error.value))
    return messages


def test_what_differs_between_workers_is_named_with_its_cure(cluster):
    first, second = cluster(2).run(messages_of_unlike, timeout=180)
    assert first == second
    for message, expected, case in zip(first, FOUND.values(), FOUND, strict=True):
        assert re.search(".*".join(expected), message, re.DOTALL), f"{case.__name__}: {message}"


def moving_shift(strategy):
    with warnings_logged() as lines:
        fit(build(strategy, lambda: Shift(trained=False)), epochs=3)
    return [line for line in lines if "shift/mean" in line]


def test_a_layers_own_state_that_differs_is_said_once(cluster):
    for lines in cluster(2).run(moving_shift):
        assert len(lines) == 1 and 'aggregation="mean"' in lines[0]


# --- Compiled outside ----------------------------------------------------------------------------


def rounded_otherwise(strategy):
    model = build(strategy)
    for _ in on_second_worker(strategy, 1):
        model.set_weights([w * (1 + 2e-7) for w in model.get_weights()])
    with warnings_logged() as lines:
        fit(model)
    return lines


def test_rounding_is_said_once_and_no_error(cluster):
    for lines in cluster(2).run(rounded_otherwise):
        (line,) = lines
        assert "last/kernel: another value on worker 1" in line
        assert "as small as that of rounding" in line


def messages_of_compile_outside(strategy):
    messages = []
    for call in "fit", "evaluate":
        model = build(strategy)
        model.compile(model.optimizer, "mse", metrics=["mae"])
        with pytest.raises(ValueError) as error:
            getattr(model, call)(X, Y, verbose=0)
        messages.append(str(error.value))
    return messages


def test_metrics_of_each_workers_own_are_refused(cluster):
    for messages in cluster(2).run(messages_of_compile_outside):
        for call, message in zip(("fit", "evaluate"), messages, strict=True):
            assert re.search(rf"^{call}: expected metrics .* received loss.* compile\(\)", message)


# --- No false alarm ------------------------------------------------------------------------------


class Keeps(keras.layers.Layer):
    """Variables of other dtypes, which it counts up."""

    def build(self, shape):
        dtypes = "float16", "bfloat16", "float64", "int8", "int64", "uint8", "bool"
        self.kept = [
            self.add_weight(
                shape=shape,
                dtype=dtype,
                initializer="zeros",
                trainable=False,
                name=f"{dtype}_{len(shape)}",
            )
            for dtype in dtypes
            for shape in ((3,), (), (0, 2))
        ]

    def call(self, x, training=False):
        if training:
            for weight in self.kept:
                weight.assign(keras.ops.cast(keras.ops.cast(weight, "int32") + 1, weight.dtype))
        return x


def wrapped(**arguments):
    inner = keras.optimizers.Adam(0.01, **arguments)
    return sc.ScaleComOptimizer(inner, compression_ratio=4)


LAYERS = (
    keras.layers.BatchNormalization,
    lambda: keras.layers.BatchNormalization(synchronized=True),
    lambda: keras.layers.Dropout(0.5),
    lambda: keras.layers.SpectralNormalization(keras.layers.Dense(4)),
    lambda: keras.layers.Dense(4, trainable=False),
    lambda: Shift(trained=True, aggregation="mean"),
    lambda: Shift(trained=False, aggregation="mean", name="moving"),
    Keeps,
)
OPTIMIZERS = (
    lambda: keras.optimizers.Adam(0.01, use_ema=True),
    lambda: wrapped(gradient_accumulation_steps=4),
    lambda: keras.optimizers.LossScaleOptimizer(wrapped(), initial_scale=2.0**120),
    lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)),
)


def train_alike(strategy):
    """Twice, on uneven data; what is logged, and the weights of each model."""
    weights = []
    models = [(LAYERS, None)] + [([lambda: keras.layers.Dense(8)], kind) for kind in OPTIMIZERS]
    rank = strategy.extended._id_in_cluster
    data = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensor_slices((X, Y)).take(24 - 9 * rank).batch(4)
    )
    with warnings_logged() as lines:
        for layers, optimizer in models:
            with strategy.scope():
                optimizer = optimizer() if optimizer else None
            model = build(strategy, *layers, optimizer=optimizer)
            schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
            constant = isinstance(model.optimizer.learning_rate, keras.Variable)
            for _ in range(2):
                model.fit(data, epochs=2, verbose=0, callbacks=[schedule] if constant else [])
            weights.append(digest(model.trainable_variables))
    return weights, [line for line in lines if "fit, " in line]


def test_models_that_are_alike_are_not_refused(cluster):
    first, second = cluster(2).run(train_alike, timeout=300)
    assert first == second and first[1] == []


def train_stateful(strategy):
    rank = strategy.extended._id_in_cluster
    x = X.reshape(2, 4, 3, 4)[rank]
    data = strategy.distribute_datasets_from_function(
        lambda _: (
            tf.data.Dataset.from_tensor_slices((x, x[:, 0, :1]))
            .batch(2, drop_remainder=True)
            .repeat()
        )
    )
    with strategy.scope():
        body = keras.layers.GRU(4, stateful=True)
        model = keras.Sequential([keras.Input((3, 4), 2), body, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    with warnings_logged() as lines:
        for _ in range(2):
            model.fit(data, epochs=2, steps_per_epoch=3, verbose=0)
    states = digest(body.states)
    return digest(model.trainable_variables), states, [line for line in lines if "fit, " in line]


def test_states_of_rows_are_each_workers_own(cluster):
    (first, first_states, said), (second, second_states, _) = cluster(2).run(train_stateful)
    assert first == second and said == []
    assert first_states != second_states
