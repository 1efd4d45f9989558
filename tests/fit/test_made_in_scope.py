"""What Keras trains without a strategy trains in its scope, or is refused in one sentence."""

import contextlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from logged_warnings import warnings_logged

import tf_scalecom as sc

X = np.random.default_rng(0).normal(size=(12, 20)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
BATCH = 6


def layers():
    return [keras.layers.Dense(60), keras.layers.Dense(1)]


def adam(wrapped):
    optimizer = keras.optimizers.Adam(0.01)
    return sc.ScaleComOptimizer(optimizer, compression_ratio=10) if wrapped else optimizer


# --- Made outside --------------------------------------------------------------------------------


def scope_or_not(strategy, inside):
    return strategy.scope() if inside else contextlib.nullcontext()


def fit(strategy, model, optimizer, compile_inside=True):
    with scope_or_not(strategy, compile_inside):
        model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=BATCH, verbose=0)


def sequential(*first):
    return keras.Sequential([keras.Input((20,)), *(first or layers())])


def optimizer_outside(strategy, wrapped):
    with strategy.scope():
        model = sequential()
    fit(strategy, model, adam(wrapped))


def optimizer_by_name_outside(strategy, wrapped):
    with strategy.scope():
        model = sequential()
    fit(strategy, model, "adam", compile_inside=False)


def slots_outside(strategy, wrapped):
    with strategy.scope():
        model = sequential()
    optimizer = adam(wrapped)
    optimizer.build(model.trainable_variables)
    fit(strategy, model, optimizer)


def model_outside(strategy, wrapped):
    with strategy.scope():
        optimizer = adam(wrapped)
    fit(strategy, sequential(), optimizer)


def layer_outside(strategy, wrapped):
    layer, last = layers()
    layer.build((None, 20))
    with strategy.scope():
        fit(strategy, sequential(layer, last), adam(wrapped))


OUTSIDE = {
    optimizer_outside: "Expected an optimizer made where its model is, in a strategy's scope; rec",
    optimizer_by_name_outside: "received Adam, made outside of the strategy's scope. Make",
    slots_outside: "in a strategy's scope; received .*, made outside of the strategy's scope",
    model_outside: "its model is, outside of the strategy's scope; received .* in a strategy",
    layer_outside: "Expected a variable made in the scope .*; received .*/kernel.*, made outside",
}


def messages_of_outside(strategy, wrapped):
    messages = []
    for case in OUTSIDE:
        with pytest.raises(ValueError) as error:
            case(strategy, wrapped)
        messages.append(str(error.value))
    return messages


@pytest.mark.parametrize(("workers", "wrapped"), [(1, True), (2, False), (2, True), (3, False)])
def test_what_is_made_outside_the_scope_is_named(cluster, workers, wrapped):
    for messages in cluster(workers).run(messages_of_outside, wrapped, timeout=120):
        for message, expected in zip(messages, OUTSIDE.values(), strict=True):
            assert re.search(expected, message), message


def fit_outside(strategy):
    with warnings_logged() as lines:
        model = sequential()
        model.compile(adam(wrapped=True), "mse")
        model.fit(X, Y, batch_size=BATCH, epochs=1, verbose=0, validation_data=(X, Y))
    return [line for line in lines if "trains model" in line]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_trains_beside_the_strategy_is_said_once(cluster, workers):
    for lines in cluster(workers).run(fit_outside):
        assert len(lines) == (workers > 1)
        assert all("on this worker alone: it was made outside" in line for line in lines)


def build_wrapped_outside(strategy):
    with strategy.scope():
        model, optimizer = sequential(), adam(wrapped=True)
    optimizer.build(model.trainable_variables)  # the variables know their strategy
    fit(strategy, model, optimizer)
    return model.get_weights()


def test_a_wrapped_optimizer_is_built_wherever_its_variables_are(cluster):
    first, second = cluster(2).run(build_wrapped_outside)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


# --- Built by its steps --------------------------------------------------------------------------


class OwnStep(keras.Model):
    """Trains its layers by a step of its own, and cannot be called."""

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential(layers())

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.inner(x) - y) ** 2)
        gradients = tape.gradient(loss, self.inner.trainable_variables)
        self.optimizer.apply(gradients, self.inner.trainable_variables)
        return {"loss": loss}


class CalledOtherwise(OwnStep):
    """Its `call()` takes a code, as that of a generator does, not what `fit` is given."""

    def call(self, code):
        return self.inner(tf.reshape(code["code"], (-1, 20)))


def own_steps(strategy):
    results = []
    for kind in (OwnStep, CalledOtherwise):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = kind()
            model.compile(sc.ScaleComOptimizer(keras.optimizers.SGD(0.01), compression_ratio=1))
        # Not x and y: Keras shuffles them, each worker as it likes.
        model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH), verbose=0)
        results.append(model.inner.get_weights())
    return results


@pytest.mark.parametrize("workers", [1, 3])
def test_models_that_keras_cannot_call_train_as_without_a_strategy(cluster, workers):
    expected = own_steps(tf.distribute.get_strategy())
    for results in cluster(workers).run(own_steps, timeout=90):
        for weights, alone in zip(results, expected, strict=True):
            for one, other in zip(weights, alone, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# --- Fixed batch sizes ---------------------------------------------------------------------------


def fixed_batch_sizes(strategy):
    said = []
    for rows in (BATCH, BATCH // strategy.num_replicas_in_sync):
        with strategy.scope():
            model = keras.Sequential([keras.Input((20,), batch_size=rows), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        with warnings_logged() as lines:
            data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
            model.fit(data, verbose=0)
        said.append([line for line in lines if "share of the batch" in line])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])  # Keras takes its inputs from the data
        model.compile("sgd", "mse")
    with warnings_logged() as lines:
        for batch in (BATCH, BATCH // 2):
            model.fit(X, Y, batch_size=batch, verbose=0)
    return [*said, [line for line in lines if "share of the batch" in line]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fixed_batch_size_is_that_of_a_replicas_share(cluster, workers):
    for of_batch, of_share, of_data in cluster(workers).run(fixed_batch_sizes):
        assert of_share == of_data == [] and len(of_batch) == (workers > 1)
        assert all("3 rows; received one with an Input for 6." in line for line in of_batch)
        assert all("Input(batch_size=3)" in line for line in of_batch)
