"""A small classifier on random data, trained by `fit`, and what one process gets."""

import keras
import numpy as np
import tensorflow as tf


def data(seed=0, samples=90):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, 8)).astype("float32"), rng.integers(0, 3, samples)


def build(optimizer="sgd", steps_per_execution=1, **compile_arguments):
    """A small classifier, the same whenever it is built after the random seed was set."""
    optimizers = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01),
        "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=1024.0
        ),
    }
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(
                16, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3)
            ),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        optimizers[optimizer](),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
        **compile_arguments,
    )
    return model


def weights(model):
    return [w.numpy() for w in model.trainable_variables]


def train_on_arrays(strategy, batch_size=30, **arguments):
    with strategy.scope():
        model = build(**arguments)
    x, y = data(samples=3 * batch_size)
    history = model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return {
        "weights": weights(model),
        "loss": history.history["loss"],
        "evaluate": model.evaluate(x, y, batch_size=batch_size, verbose=0),
        "predict": model.predict(x, batch_size=batch_size, verbose=0),
    }


def alone(**arguments):
    keras.utils.set_random_seed(0)
    return train_on_arrays(tf.distribute.get_strategy(), **arguments)


def assert_equal(result, expected):
    for name, value in expected.items():
        for received, wanted in zip(
            tf.nest.flatten(result[name]), tf.nest.flatten(value), strict=True
        ):
            np.testing.assert_allclose(received, wanted, rtol=1e-4, atol=2e-6, err_msg=name)
