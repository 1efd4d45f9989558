"""Models saved and loaded: `.keras`, `.weights.h5`, by one worker and by all."""

import warnings

import keras
import pytest
import tensorflow as tf
from digits import digest, digits

import tf_scalecom as sc

BATCH = 8


@keras.saving.register_keras_serializable(package="tests")
class HalfSGD(keras.optimizers.SGD):
    """An inner optimizer of the user's own."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate / 2)


def inner_optimizer():
    return HalfSGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), momentum=0.9)


def build(strategy, inner=inner_optimizer):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((20,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            sc.ScaleComOptimizer(inner(), 100, beta=0.3, warmup_steps=2),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    return model


def train(model, epochs=1, callbacks=()):
    x, y = digits(6 * BATCH)
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def state(model):
    optimizer = model.optimizer
    assert isinstance(optimizer, sc.ScaleComOptimizer)
    return {
        "weights": digest(model.variables),
        "inner": digest(optimizer.inner_optimizer.variables),
        "residual": [parts[0].tobytes() for parts in optimizer.residuals.values()],
    }


def assert_equal_state(got, expected):
    for part, value in expected.items():
        assert got[part] == value, part


# --- On all workers ------------------------------------------------------------------------------


def save_on_one_and_load_on_all(strategy, path, saver):
    model = train(build(strategy))
    if strategy.extended._id_in_cluster == saver:
        model.save(path)
    strategy.reduce("SUM", tf.constant(1.0), axis=None)  # all wait for the file
    with strategy.scope():
        loaded = keras.models.load_model(path)
    before, after = state(model), state(loaded)
    configs = [m.optimizer.get_config() for m in (model, loaded)]
    weights = [digest(train(m).trainable_variables) for m in (model, loaded)]
    return before, after, configs, weights


@pytest.mark.parametrize("saver", [0, 1])
def test_a_model_saved_by_one_worker_trains_on_on_all(cluster, tmp_path, saver):
    path = str(tmp_path / "model.keras")
    results = cluster(2).run(save_on_one_and_load_on_all, path, saver, timeout=150)
    expected, *_ = results[saver]
    for _, after, (before_config, after_config), _ in results:
        assert_equal_state(after, expected)
        assert after_config == before_config
    assert results[0][3] == results[1][3]  # bit-equal, and nobody waited


def load_weights_on_all(strategy, path, built):
    model = train(build(strategy))
    if strategy.extended._id_in_cluster == 0:
        model.save_weights(path)
    strategy.reduce("SUM", tf.constant(1.0), axis=None)
    other = build(strategy)
    if built:
        with strategy.scope():
            other.optimizer.build(other.trainable_variables)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.load_weights(path)
    said = [str(warning.message) for warning in caught]
    weights = [digest(m.trainable_variables) for m in (model, other)]
    return state(model), state(other) if built else None, weights, said


def test_weights_are_loaded_with_the_optimizer_or_a_warning(cluster, tmp_path):
    path = str(tmp_path / "model.weights.h5")
    results = cluster(2).run(load_weights_on_all, path, True, timeout=150)
    for _, loaded, _, said in results:
        assert_equal_state(loaded, results[0][0])
        assert said == []
    for *_, weights, said in cluster(2).run(load_weights_on_all, path, False, timeout=150):
        assert weights[0] == weights[1]
        assert any("Call `optimizer.build(model.trainable_variables)`" in text for text in said)


def fit_with_checkpoints(strategy, folder, alone):
    """Each epoch writes two files, of the model and of the weights."""
    writers = [
        keras.callbacks.ModelCheckpoint(folder + "/{epoch}.keras"),
        keras.callbacks.ModelCheckpoint(folder + "/last.weights.h5", save_weights_only=True),
    ]
    if alone:
        writers = [sc.callbacks.chief_only(writer) for writer in writers]
    own = f"{folder}/own-{strategy.extended._id_in_cluster}.keras"
    writers.append(keras.callbacks.ModelCheckpoint(own))
    model = train(build(strategy), epochs=3, callbacks=writers)
    with strategy.scope():
        loaded = keras.models.load_model(folder + "/3.keras")
    return state(model), state(loaded)


@pytest.mark.parametrize("alone", [False, True], ids=["all_workers", "chief_only"])
def test_checkpoints_on_one_path_are_whole_and_those_of_the_chief(cluster, tmp_path, alone):
    results = cluster(3).run(fit_with_checkpoints, str(tmp_path), alone, timeout=150)
    for _, loaded in results:
        assert_equal_state(loaded, results[0][0])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"1.keras", "2.keras", "3.keras", "last.weights.h5"} | {
        f"own-{rank}.keras" for rank in range(3)
    }


def fit_with_keras_backup(strategy, folder):
    callback = keras.callbacks.BackupAndRestore(f"{folder}/{strategy.extended._id_in_cluster}")
    callbacks = [callback] if strategy.extended._is_chief else []
    try:
        train(build(strategy), callbacks=callbacks)
    except ValueError as error:
        return str(error)
    return None


def test_the_backup_of_keras_is_refused_on_several_workers(cluster, tmp_path):
    for error in cluster(2).run(fit_with_keras_backup, str(tmp_path), timeout=120):
        assert "tf_scalecom.callbacks.BackupAndRestore" in error


# --- In one process ------------------------------------------------------------------------------


def test_a_model_that_was_compiled_and_not_trained_loads(tmp_path):
    path = tmp_path / "model.keras"
    model = build(tf.distribute.get_strategy())
    model.save(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = keras.saving.load_model(path)
    assert any("saved before the first step" in str(warning.message) for warning in caught)
    assert digest(train(loaded).trainable_variables) == digest(train(model).trainable_variables)


def test_a_file_holds_each_variable_once(tmp_path):
    model = train(build(tf.distribute.get_strategy()))
    plain = keras.models.clone_model(model)
    plain.compile(inner_optimizer(), loss=model.loss)
    plain.optimizer.build(plain.trainable_variables)
    sizes = []
    for name, saved in (("a", model), ("b", plain)):
        path = tmp_path / f"{name}.weights.h5"
        saved.save_weights(path)
        sizes.append(path.stat().st_size)
    residuals = sum(parts[0].nbytes for parts in model.optimizer.residuals.values())
    assert sizes[0] - sizes[1] < residuals + 20_000  # HDF5's own records
    of_inner = {id(v) for v in model.optimizer.inner_optimizer.variables}
    own = [v.name for v in model.optimizer.variables if id(v) not in of_inner]
    assert own == ["skipped_steps", "residual_0"]


def test_restored_weights_continue_alike(tmp_path):
    """An interrupted run goes on as the uninterrupted one, from a `.keras` file."""
    path = tmp_path / "model.keras"
    strategy = tf.distribute.get_strategy()
    straight = train(build(strategy), epochs=2)
    train(build(strategy)).save(path)
    loaded = train(keras.models.load_model(path))
    assert digest(loaded.trainable_variables) == digest(straight.trainable_variables)
