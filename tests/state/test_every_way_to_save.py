"""What Keras and TensorFlow offer to save a model, with the wrapper in one process.

Each with one replica and with two, of which each has a residual of its own.
"""

import pickle
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_scalecom as sc

BATCH = 8
X = np.random.default_rng(0).normal(size=(6 * BATCH, 40)).astype("float32")
Y = np.random.default_rng(1).normal(size=(6 * BATCH, 30)).astype("float32")


def one_replica():
    return tf.distribute.get_strategy()


def two_replicas():
    devices = ["/device:CPU:0", "/device:CPU:1"]
    return tf.distribute.MirroredStrategy(
        devices, cross_device_ops=sc.ScaleComAllReduce.for_devices(devices)
    )


@pytest.fixture(
    params=[one_replica, pytest.param(two_replicas, marks=pytest.mark.slow)],
    ids=lambda make: make.__name__,
)
def strategy(request):
    return request.param()


def wrapped():
    return sc.ScaleComOptimizer(keras.optimizers.Adam(use_ema=True), 10, beta=0.5)


def scaled():
    return keras.optimizers.LossScaleOptimizer(wrapped())


def build(strategy, optimizer=wrapped):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(30)])
        model.compile(optimizer(), loss=keras.losses.MeanSquaredError(), metrics=["mae"])
    return model


def train(model):
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    return model


def state(model):
    """All values of a model and its optimizer, the residuals of each replica."""
    optimizer = model.optimizer
    values = [np.asarray(v) for v in (*model.variables, *optimizer.variables)]
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return values + [part for parts in optimizer.residuals.values() for part in parts]


def assert_equal(got, expected):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def checkpoint(model):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


@pytest.mark.parametrize(
    ("optimizer", "built"),
    [(wrapped, True), (wrapped, False), (scaled, True)],
    ids=["built", "not_yet_built", "loss_scale"],
)
def test_a_checkpoint_goes_on_as_if_there_had_been_no_stop(strategy, optimizer, built, tmp_path):
    model = train(build(strategy, optimizer))
    path = checkpoint(model).write(str(tmp_path / "checkpoint"))
    saved = state(model)
    other = build(strategy, optimizer)
    if built:
        with strategy.scope():
            other.optimizer.build(other.trainable_variables)
    restored = checkpoint(other).read(path)
    if built:
        restored.assert_consumed()
        assert_equal(state(other), saved)
    assert_equal(state(train(other)), state(train(model)))


def test_residuals_of_other_replicas_are_shared_out(tmp_path):
    model = train(build(two_replicas()))
    path = checkpoint(model).write(str(tmp_path / "checkpoint"))
    alone = build(one_replica())
    alone.optimizer.build(alone.trainable_variables)
    checkpoint(alone).read(path).assert_consumed()
    (parts,) = model.optimizer.residuals.values()
    ((total,),) = alone.optimizer.residuals.values()
    np.testing.assert_array_equal(total, parts[0] + parts[1])


def test_a_manager_keeps_its_last_checkpoints(tmp_path):
    model = train(build(one_replica()))
    manager = tf.train.CheckpointManager(checkpoint(model), str(tmp_path), max_to_keep=2)
    for _ in range(3):
        manager.save()
    expected = state(model)
    train(model)
    assert manager.restore_or_initialize() == manager.checkpoints[-1]
    assert len(manager.checkpoints) == 2
    assert_equal(state(model), expected)


def test_an_asynchronous_checkpoint_is_of_its_moment(tmp_path):
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    model = train(build(two_replicas()))
    expected = state(model)
    writer = checkpoint(model)
    path = writer.write(str(tmp_path / "checkpoint"), options)
    other = train(model)
    writer.sync()
    assert any((a != b).any() for a, b in zip(state(other), expected, strict=True))
    checkpoint(other).read(path)
    assert_equal(state(other), expected)


def test_exported_models_serve(strategy, tmp_path):
    model = train(build(strategy))
    expected = model.predict(X[:4], verbose=0)
    model.export(str(tmp_path / "export"), verbose=False)
    tf.saved_model.save(model, str(tmp_path / "saved_model"))
    for folder in ("export", "saved_model"):
        loaded = tf.saved_model.load(str(tmp_path / folder))
        (served,) = loaded.signatures["serving_default"](tf.constant(X[:4])).values()
        np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "pickle"])
def test_a_model_loads_without_the_strategy_and_trains_on(strategy, name, tmp_path):
    model = train(build(strategy))
    if name == "pickle":
        loaded = pickle.loads(pickle.dumps(model))
    else:
        model.save(tmp_path / name)
        loaded = keras.saving.load_model(tmp_path / name)
    assert isinstance(loaded.optimizer, sc.ScaleComOptimizer)
    if not loaded.optimizer.built:  # a `.h5` file is loaded so by Keras; then, with the first step
        loaded.optimizer.build(loaded.trainable_variables)
    for one, other in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    train(loaded)


def bare():
    return keras.optimizers.Adam()


def of_sgd():
    return sc.ScaleComOptimizer(keras.optimizers.SGD(momentum=0.9), 10)


@pytest.mark.parametrize("built", [True, False], ids=["built", "not_yet_built"])
@pytest.mark.parametrize("saved_with", [bare, of_sgd])
def test_weights_of_another_optimizer_load_with_a_warning(saved_with, built, tmp_path):
    path = tmp_path / "model.weights.h5"
    saved = train(build(one_replica(), saved_with))
    saved.save_weights(path)
    model = build(one_replica())
    if built:
        train(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.load_weights(path)
    assert any("kipping" in str(warning.message) for warning in caught)
    assert_equal([np.asarray(v) for v in model.variables], [np.asarray(v) for v in saved.variables])
    train(model)


def test_models_built_again_take_their_best_weights(tmp_path):
    """As in KerasTuner's `get_best_models`: build by hyper-parameters, load the trial's weights."""
    path = str(tmp_path / "checkpoint.weights.h5")
    best = build(one_replica(), of_sgd)
    writer = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    best.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[writer])
    again = build(one_replica(), of_sgd)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again.load_weights(path)
    assert_equal(again.predict(X, verbose=0), best.predict(X, verbose=0))
