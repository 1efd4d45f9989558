"""Rows of ten noisy classes, a model of them, and a hash by which workers compare models."""

import hashlib

import keras
import numpy as np


def digest(variables):
    """A hash of all values, for comparing workers bit by bit."""
    sha = hashlib.sha256()
    for variable in variables:
        sha.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return sha.hexdigest()


def digits(samples, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, samples)
    centres = np.random.default_rng(99).normal(size=(10, 20))
    return (centres[y] + rng.normal(size=(samples, 20))).astype(np.float32), y


def dense_model(strategy, make_optimizer, **compile_arguments):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((20,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10, dtype="float32"),
            ]
        )
        model.compile(
            make_optimizer(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            **compile_arguments,
        )
    return model
