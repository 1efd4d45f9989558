"""Every way to save, on several workers: each to its own path, one alone, all to one path."""

import contextlib
import hashlib
import pickle
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_scalecom as sc
from tf_scalecom.base.whole_files import written_whole

X = np.random.default_rng(0).normal(size=(24, 40)).astype("float32")
Y = np.random.default_rng(1).normal(size=(24, 60)).astype("float32")


def wrapped(rate=0.001):
    return sc.ScaleComOptimizer(keras.optimizers.Adam(rate), 10)


def build(strategy, make_optimizer=wrapped):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(60)])
        model.compile(make_optimizer(), keras.losses.MeanSquaredError(), metrics=["mae"])
    return model


def train(model):
    model.fit(X, Y, batch_size=12, shuffle=False, verbose=0)
    return model


def values(model):
    return [np.asarray(v) for v in (*model.variables, *model.optimizer.variables)]


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def wait_for_all(strategy):
    strategy.extended.workers.gather(None, "what was saved")


def checkpoint(model):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def save_in_every_way(model, folder):
    """Keras's and TensorFlow's ways, each to a name in a folder."""
    model.save(f"{folder}/model.keras")
    model.save(f"{folder}/unpacked", zipped=False)
    model.save_weights(f"{folder}/model.weights.h5")
    model.export(f"{folder}/export", verbose=False)
    tf.saved_model.save(model, f"{folder}/saved_model")
    tf.train.CheckpointManager(checkpoint(model), f"{folder}/checkpoints", 2).save()
    pickle.dumps(model)
    model.save(f"{folder}/model.h5")


def save_alone(strategy, folder, savers):
    """The workers `savers` save in the scope, each to a path of its own; all load from there."""
    rank = strategy.extended._id_in_cluster
    model = train(build(strategy))
    own = Path(folder) / str(rank)
    if rank in savers:
        own.mkdir()
        with strategy.scope():
            save_in_every_way(model, own)
            loaded = keras.saving.load_model(own / "model.keras")
        assert equal(values(loaded), values(model))
    wait_for_all(strategy)
    place = own if rank in savers else Path(folder) / str(savers[0])
    with strategy.scope():
        loaded = keras.saving.load_model(place / "model.keras")
    restored = build(strategy)
    with strategy.scope():
        keras.models.clone_model(restored)
    checkpoint(restored).read(tf.train.latest_checkpoint(place / "checkpoints"))
    # All from their own files go on as if there had been no stop, all from one go on alike.
    return [[v.tobytes() for v in values(train(m))] for m in (model, restored, loaded)]


@pytest.mark.parametrize(("number", "savers"), [(2, [1]), (2, [0, 1])])
def test_workers_save_in_the_scope_without_the_others(cluster, tmp_path, number, savers):
    results = cluster(number).run(save_alone, str(tmp_path), savers, timeout=200)
    for straight, restored, loaded in results:
        assert restored == loaded
        assert restored == straight or len(savers) < number
        assert restored[:2] == results[0][1][:2]  # the weights


def save_to_one_path(strategy, folder, make_optimizer):
    """All save to the same paths, at the same time, twice."""
    rank = strategy.extended._id_in_cluster
    model = train(build(strategy, make_optimizer))
    for _ in range(2):
        wait_for_all(strategy)
        model.save(f"{folder}/model.keras")
        model.save(f"{folder}/unpacked", zipped=False)
        model.save_weights(f"{folder}/model.weights.h5")
        model.export(f"{folder}/exports/1", verbose=False)
        tf.saved_model.save(model, f"{folder}/saved_model")
    model.save(f"{folder}/model.h5")
    wait_for_all(strategy)
    served = []
    if rank == 0:
        for name in ("exports/1", "saved_model"):
            serve = tf.saved_model.load(f"{folder}/{name}").signatures["serving_default"]
            served += serve(tf.constant(X[:2])).values()
    return values(model), [np.asarray(s) for s in served], model.predict_on_batch(X[:2])[:2]


def adam():
    return keras.optimizers.Adam()


@pytest.mark.parametrize(("number", "make_optimizer"), [(2, adam), (3, wrapped)])
def test_all_workers_to_one_path_leave_one_whole_file(cluster, tmp_path, number, make_optimizer):
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "notes.txt").write_text("mine")
    results = cluster(number).run(save_to_one_path, str(tmp_path), make_optimizer, timeout=200)
    states = [state for state, _, _ in results]
    for name in ("model.keras", "unpacked"):
        loaded = values(keras.saving.load_model(tmp_path / name))
        assert any(equal(loaded, state) for state in states), name
    again = build(tf.distribute.get_strategy(), make_optimizer)
    again.optimizer.build(again.trainable_variables)
    again.load_weights(tmp_path / "model.weights.h5")
    assert any(equal(values(again), state) for state in states)
    keras.saving.load_model(tmp_path / "model.h5")
    _, served, expected = results[0]
    for rows in served:
        np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)
    assert (tmp_path / "saved_model" / "notes.txt").read_text() == "mine"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "model.keras",
        "model.h5",
        "unpacked",
        "model.weights.h5",
        "exports",
        "saved_model",
    }


def fail_to_save(strategy, path):
    model = train(build(strategy))
    model.save(path)
    wait_for_all(strategy)
    before = hashlib.sha256(Path(path).read_bytes()).digest()
    model.layers[0].save_own_variables = lambda store: 1 / 0
    with contextlib.suppress(ZeroDivisionError):
        model.save(path)
        return "saved"
    return hashlib.sha256(Path(path).read_bytes()).digest() == before


def test_what_cannot_be_written_leaves_the_old_file(cluster, tmp_path):
    assert cluster(2).run(fail_to_save, str(tmp_path / "model.keras"), timeout=120) == [True] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


def test_a_folder_is_written_anew_around_what_is_not_ours(tmp_path):
    place, link = tmp_path / "place", tmp_path / "link"
    (place / "sub").mkdir(parents=True)
    link.symlink_to(place)
    inode = place.stat().st_ino
    (place / "old").write_text("kept")
    (place / "sub" / "old").write_text("kept")
    (place / "both").write_text("before")
    with written_whole(link) as aside:
        (aside / "sub").mkdir(parents=True)
        for name in ("both", "sub/new"):
            (aside / name).write_text("after")
    texts = {str(f.relative_to(place)): f.read_text() for f in place.rglob("*") if f.is_file()}
    assert texts == {"old": "kept", "sub/old": "kept", "both": "after", "sub/new": "after"}
    assert link.is_symlink() and place.stat().st_ino == inode
    assert {path.name for path in tmp_path.iterdir()} == {"place", "link"}


# --- Optimizers made by one worker alone ---------------------------------------------------------


def make_alone(strategy, rank):
    """One worker makes optimizers of all kinds in the scope; then all train."""
    if strategy.extended._id_in_cluster == rank:
        with strategy.scope():
            for name in ("SGD", "Adam", "Nadam", "Adagrad", "Ftrl", "Lion"):
                make = getattr(keras.optimizers, name)
                make(use_ema=True)
                sc.ScaleComOptimizer(make(0.3))
                keras.optimizers.LossScaleOptimizer(make(0.3))
    model = train(build(strategy))
    return [v.tobytes() for v in values(model)[:2]]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_worker_makes_optimizers_alone(cluster, rank):
    first, second = cluster(2).run(make_alone, rank, timeout=120)
    assert first == second


def train_with_rates(strategy, loop, make_optimizer, rates):
    rate = rates[strategy.extended._id_in_cluster]
    try:
        if not loop:
            train(build(strategy, lambda: make_optimizer(rate)))
            return None
        with strategy.scope():
            optimizer = make_optimizer(rate)
            weights = tf.Variable(tf.ones([2000]))

        @tf.function
        def step():
            strategy.run(lambda: optimizer.apply([tf.ones([2000])], [weights]))

        step()
    except ValueError as error:
        return str(error)
    return None


def sgd(rate):
    return keras.optimizers.SGD(rate)


@pytest.mark.parametrize(
    ("loop", "make_optimizer"), [(False, wrapped), (True, sgd)], ids=["fit", "loop"]
)
def test_other_learning_rates_are_an_error_that_names_them(cluster, loop, make_optimizer):
    for error in cluster(2).run(train_with_rates, loop, make_optimizer, (0.1, 0.2), timeout=60):
        assert "learning_rate: 0.1 (worker 0), 0.2 (worker 1)" in error
    assert cluster(2).run(train_with_rates, loop, make_optimizer, (0.1, 0.1)) == [None] * 2
