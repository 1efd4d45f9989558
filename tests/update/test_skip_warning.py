"""A warning where nothing is learned because one step after the other is skipped."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from collected_warnings import Collected

import tf_scalecom as sc


def warnings_in(pattern, loss_scaling=False):
    """Makes a step for each letter of the pattern, with a NaN where it is "n"."""
    optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.1))
    if loss_scaling:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    variable = keras.Variable(np.zeros(3, np.float32))
    optimizer.build([variable])

    @tf.function
    def step(gradient):
        tf.distribute.get_strategy().run(lambda: optimizer.apply([gradient], [variable]))

    with Collected() as collected:
        for letter in pattern:
            step(tf.constant([1.0, np.nan if letter == "n" else 1.0, 1.0]))
    return collected.texts


def on_workers(strategy, pattern, loss_scaling):
    # The NaN is on one worker, the skip on all.
    if strategy.extended._id_in_cluster:
        pattern = pattern.replace("n", ".")
    with strategy.scope():
        return warnings_in(pattern, loss_scaling)


@pytest.mark.parametrize("loss_scaling", [False, True])
def test_every_25_skipped_steps_in_a_row_are_a_warning_on_all_workers(cluster, loss_scaling):
    pattern = "n" * 24 + "." + "n" * 24 + ".." + "n" * 51 + "."
    for texts in cluster(2).run(on_workers, pattern, loss_scaling, timeout=90):
        assert [text.split(" were")[0] for text in texts] == [
            "tf_scalecom: 25 steps in a row",
            "tf_scalecom: 50 steps in a row",
        ]
        assert all("look for nan" in text.lower() for text in texts)


def test_a_row_of_accumulated_updates_counts_updates():
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    optimizer = sc.ScaleComOptimizer(inner)
    variable = keras.Variable(np.zeros(3, np.float32))
    with Collected() as collected:
        for _ in range(25 * 2):
            optimizer.apply([tf.fill([3], np.nan)], [variable])
    rows = [text for text in collected.texts if "in a row" in text]
    assert len(rows) == 1 and optimizer.skipped_steps.numpy() == 25
