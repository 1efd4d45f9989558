"""Backups: training goes on where it was, in new processes, on as many workers or on others."""

import json
import resource
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from backed_up_training import BATCH, STEPS, build, restore_into, train
from digits import digits
from worker_cluster import WorkerCluster

import tf_scalecom as sc
from tf_scalecom.state.backup import BackupFolder


def assert_same_end(results, expected):
    for result, straight in zip(results, expected, strict=True):
        for part in ("weights", "own", "slots", "iterations"):
            assert result[part] == straight[part], part


@pytest.mark.slow
def test_new_processes_go_on_bit_for_bit(cluster, tmp_path):
    """20 steps straight equal 10, a backup, the end of the processes, and 10 more."""
    again = WorkerCluster(2, log_dir=tmp_path / "logs")
    folder = str(tmp_path / "backup")
    try:
        straight = cluster(2).run(train, 2, timeout=120)
        cluster(2).run(train, 1, folder, timeout=120)
        results = again.run(train, 2, folder, timeout=120)
        assert [result["epochs"] for result in results] == [[1]] * 2
        assert_same_end(results, straight)
        assert len({result["weights"] for result in results}) == 1
        # The residuals differ from worker to worker, or this would show little.
        assert results[0]["own"] != results[1]["own"]
    finally:
        again.close()


OTHER_METHODS = {
    "owners": {"method": "OwnersTopK", "value_dtype": "bfloat16"},
    "power_sgd": {"method": "PowerSGD", "rank": 2},
}


@pytest.mark.parametrize("name", OTHER_METHODS)
def test_other_methods_go_on_bit_for_bit_and_share_the_sum_of_the_residuals(
    cluster, tmp_path, name
):
    arguments = {**OTHER_METHODS[name], "timeout": 120}
    folder = str(tmp_path)
    straight = cluster(2).run(train, 2, **arguments)
    saved = cluster(2).run(train, 1, folder, **arguments)
    restored = cluster(3).run(train, 1, folder, **arguments)
    assert {result["weights"] for result in restored} == {saved[0]["weights"]}
    assert len({result["shared"] for result in [*restored, *saved]}) == 1
    again = cluster(2).run(train, 2, folder, **arguments)
    assert_same_end(again, straight)
    for path, parts in again[0]["residuals_at_start"].items():
        whole = parts[0] + again[1]["residuals_at_start"][path][0]
        assert np.abs(whole).max() > 0
        for result in restored:
            (part,) = result["residuals_at_start"][path]
            np.testing.assert_allclose(3 * part, whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "arguments",
    [
        {"hierarchical": True, "warmup_steps": 15, "warmup": "ramp"},  # 10 steps are made before
        OTHER_METHODS["owners"],
        OTHER_METHODS["owners"] | {"hierarchical": True},
    ],
    ids=["ramp", "owners", "hierarchical_owners"],
)
def test_several_replicas_a_worker_go_on_bit_for_bit(cluster, tmp_path, arguments):
    """From a copy of the backup as it stood after the first of two epochs."""
    workers = cluster(2, logical_cpus=2)
    folder, kept = str(tmp_path / "backup"), str(tmp_path / "kept")
    straight = workers.run(train, 2, folder, kept=kept, **arguments, timeout=120)
    results = workers.run(train, 2, kept, **arguments, timeout=120)
    assert_same_end(results, straight)
    assert [result["epochs"] for result in results] == [[1]] * 2
    assert len({result["weights"] for result in results}) == 1


@pytest.fixture(scope="module")
def backup_of_three(cluster, tmp_path_factory):
    """A folder, what the workers had when they saved, and what they have when they restore it."""
    folder = str(tmp_path_factory.mktemp("backup"))
    return folder, *(cluster(3).run(train, 1, folder, timeout=120) for _ in range(2))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_another_number_of_workers_shares_the_sum_of_the_residuals(
    cluster, backup_of_three, workers
):
    folder, saved, again = backup_of_three
    restored = cluster(workers).run(train, 1, folder, timeout=120)
    assert {result["weights"] for result in restored} == {saved[0]["weights"]}
    assert [result["iterations"] for result in restored] == [STEPS] * workers
    for path in again[0]["residuals_at_start"]:
        whole = sum(result["residuals_at_start"][path][0].astype(np.float64) for result in again)
        assert np.abs(whole).max() > 0
        for result in restored:
            (part,) = result["residuals_at_start"][path]
            np.testing.assert_allclose(part * workers, whole, rtol=1e-5, atol=1e-7)


def test_what_does_not_fit_is_an_error_and_other_hyper_parameters_a_warning(cluster, tmp_path):
    cluster(2).run(train, 1, str(tmp_path), timeout=120)
    for error, _ in cluster(2).run(restore_into, str(tmp_path), {"units": 32}, timeout=120):
        assert "model.0.shape.1: 64 (the backup), 32 (this program)" in error
    for error, messages in cluster(2).run(restore_into, str(tmp_path), {"beta": 0.5}, timeout=120):
        assert error is None
        (warning,) = (m for m in messages if "hyper-parameters" in m)
        assert "config.beta: 0.3 (the backup), 0.5 (this program)" in warning
    (shard,) = tmp_path.glob("*/worker-1.npz")
    shard.write_bytes(shard.read_bytes()[:-100])
    for error, _ in cluster(2).run(restore_into, str(tmp_path), {}, timeout=120):
        assert "error on worker 1 (ValueError: worker-1.npz: expected a file of digest" in error


def train_with_a_full_disk(strategy, folder):
    """After the first epoch no file may grow beyond 1,000 bytes."""

    backups = sc.callbacks.BackupAndRestore(folder, delete_checkpoint=False)

    class FullDisk(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                backups._folder.finish()
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                limit = (1_000, resource.RLIM_INFINITY)
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    x, y = digits(STEPS * BATCH)
    model = build(strategy)
    try:
        model.fit(
            x,
            y,
            batch_size=BATCH,
            epochs=2,
            verbose=0,
            callbacks=[FullDisk(), backups],
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    return int(model.optimizer.iterations.numpy())


def test_a_full_disk_leaves_the_earlier_backup_and_training_goes_on(cluster, tmp_path):
    folder = tmp_path / "backup"
    assert cluster(2).run(train_with_a_full_disk, str(folder), timeout=120) == [20, 20]
    (again, _) = cluster(2).run(train, 1, str(folder), timeout=120)
    assert again["epochs"] == [] and again["iterations"] == STEPS
    (meta,) = folder.glob("*/backup.json")
    assert json.loads(meta.read_text())["content"]["epoch"] == 1


def folder_of_own(strategy, folders):
    rank = strategy.extended._id_in_cluster
    try:
        train(strategy, 1, folders[rank])
    except OSError as error:
        return str(error)
    return None


def test_a_folder_that_is_not_shared_is_an_error_before_training(cluster, tmp_path):
    folders = [str(tmp_path / name) for name in "ab"]
    for error in cluster(2).run(folder_of_own, folders, timeout=120):
        assert "error on worker 1" in error


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="backup_dir"):
        sc.callbacks.BackupAndRestore("")
    for save_freq in (0, -1, True, "batch", 2.0):
        with pytest.raises(ValueError, match="save_freq"):
            sc.callbacks.BackupAndRestore("folder", save_freq=save_freq)


# --- One process ---------------------------------------------------------------------------------


def test_a_number_of_batches_counts_them_under_several_steps_per_execution(tmp_path):
    model = build(tf.distribute.get_strategy())
    x, y = digits(10 * BATCH)
    saved_at = []
    backups = sc.callbacks.BackupAndRestore(tmp_path, save_freq=4)

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            backups._folder.finish()
            meta = BackupFolder(tmp_path, 0, lambda value, _: [value]).latest()
            saved_at.append((batch, meta and meta["place"]))

    model.compile(model.optimizer, model.loss, steps_per_execution=2)
    model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=1,
        verbose=0,
        callbacks=[backups, Watch()],
    )
    first, second = "backup-00000001", "backup-00000002"
    assert saved_at == [(1, None), (3, first), (5, first), (7, second), (9, second)]
    assert not any(tmp_path.iterdir())  # training is through


# --- Callbacks on the chief alone ----------------------------------------------------------------


def fit_with_writer(strategy):
    begun = []

    class Writer(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            begun.append((epoch, self.model is not None, self.params["epochs"]))

    x, y = digits(4 * BATCH)
    model = build(strategy)
    model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=2,
        verbose=0,
        callbacks=[sc.callbacks.chief_only(Writer())],
    )
    return begun


@pytest.mark.quick
def test_chief_only_runs_a_callback_on_the_chief_alone(cluster):
    assert cluster(2).run(fit_with_writer, timeout=120) == [[(0, True, 2), (1, True, 2)], []]


def test_callbacks_that_change_training_are_refused_on_the_chief_alone(tmp_path):
    for callback in (
        keras.callbacks.EarlyStopping(),
        sc.callbacks.BackupAndRestore(tmp_path),
    ):
        with pytest.raises(ValueError, match=type(callback).__name__):
            sc.callbacks.chief_only(callback)
