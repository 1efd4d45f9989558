"""What replicas draw at random in a step: each its own, repeatable, from a state that all share."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from digits import digest

import tf_scalecom as sc

ROWS = 4


class Draws(keras.layers.Layer):
    """Adds what it draws to its inputs, from a generator of its own or from Keras's."""

    def __init__(self, own):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(5) if own else None

    def call(self, x, training=False):
        return x + keras.random.uniform(keras.ops.shape(x), seed=self.seed_generator)


DRAWN_BY = {
    "dropout": lambda: keras.layers.Dropout(0.5, seed=5),
    "spatial dropout": lambda: keras.layers.SpatialDropout2D(0.5, seed=5),
    "noise": lambda: keras.layers.GaussianNoise(1.0, seed=5),
    "augmentation": lambda: keras.layers.RandomTranslation(0.5, 0.5, seed=5),
    "own generator": lambda: Draws(own=True),
    "Keras's generator": lambda: Draws(own=False),
}
IMAGE = np.linspace(0.1, 1.9, 8 * 8 * 16).reshape(1, 8, 8, 16).astype("float32")


def drawn(strategy, kind, calls=2):
    """What each replica of this process makes of the same rows, call by call; the state then."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layer = DRAWN_BY[kind]()

    @tf.function
    def step():
        return strategy.run(layer, args=(IMAGE,), kwargs={"training": True})

    results = [strategy.experimental_local_results(step()) for _ in range(calls)]
    return [[part.numpy() for part in result] for result in results], digest(layer.variables)


@pytest.mark.quick
@pytest.mark.parametrize("kind", DRAWN_BY)
def test_each_replica_draws_its_own_from_a_state_that_all_share(cluster, kind):
    replicas, states = zip(*cluster(2).run(drawn, kind), strict=True)
    alone, state = drawn(tf.distribute.get_strategy(), kind)
    assert set(states) == {state}
    for call, expected in enumerate(alone):
        (first,), (second,) = (calls[call] for calls in replicas)
        np.testing.assert_array_equal(first, expected[0])  # that of one process
        assert not np.array_equal(first, second)
    for calls in replicas:
        assert not np.array_equal(calls[0], calls[1])


def test_what_is_drawn_is_repeated(cluster):
    first, again = (cluster(2).run(drawn, "Keras's generator") for _ in range(2))
    for (calls, state), (others, their_state) in zip(first, again, strict=True):
        np.testing.assert_array_equal(calls, others)
        assert state == their_state


def test_devices_of_one_worker_are_replicas_too(cluster):
    (((first, second),), _), *_ = cluster(1, logical_cpus=2).run(drawn, "dropout", calls=1)
    assert not np.array_equal(first, second)


def weights_and_data_drawn_in_scope(strategy):
    generator = keras.random.SeedGenerator(5)
    initializer = keras.initializers.RandomNormal(seed=generator)
    with strategy.scope():
        layer = keras.layers.Dense(8, kernel_initializer=initializer)
        layer.build((1, 8))
        noise = keras.random.normal((8,), seed=generator)
        drawn = tf.data.Dataset.range(2).map(lambda _: keras.random.normal((8,), seed=generator))
        return digest([*layer.variables, noise, *drawn])


def test_weights_and_datasets_are_drawn_alike(cluster):
    first, second = cluster(2).run(weights_and_data_drawn_in_scope)
    assert first == second


def train_with_dropout(strategy, epochs, folder=None):
    """On the same rows on all workers: what differs is drawn."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((16,)), keras.layers.Dropout(0.5), keras.layers.Dense(4)]
        )
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
    rows = np.random.default_rng(0).normal(size=(8, 16)).astype("float32")
    callbacks = [sc.callbacks.BackupAndRestore(folder, delete_checkpoint=False)] if folder else []
    data = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensor_slices((rows, rows[:, :4])).batch(4)
    )
    model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
    return digest(model.weights), digest(model.non_trainable_variables)


def test_masks_are_repeated_from_the_seed_and_go_on_after_a_restore(cluster, tmp_path):
    run = cluster(2).run
    straight = run(train_with_dropout, 3)
    assert straight[0] == straight[1] == run(train_with_dropout, 3)[0]
    run(train_with_dropout, 1, str(tmp_path))
    assert run(train_with_dropout, 3, str(tmp_path)) == straight
