"""Whose a folder of backups is: one training's at a time, and the next one's after its end."""

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import keras
import pytest
from backed_up_training import BATCH, build, restore_into
from digits import digits

import tf_scalecom as sc
from tf_scalecom.state import backup_owner
from tf_scalecom.state.backup_owner import MARK, Owner

# The module alone: a process of TensorFlow takes seconds to start.
HOLDER = """
import importlib.util, pathlib, sys, time
spec = importlib.util.spec_from_file_location("backup_owner", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
owner = module.Owner(pathlib.Path(sys.argv[2]))
owner.claim()
print("claimed", flush=True)
if sys.argv[3:] == ["fail"]:
    raise SystemExit(1)
time.sleep(600)
"""


def other_job(folder, *arguments):
    """A process that has claimed a folder, and lives until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, backup_owner.__file__, str(folder), *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "claimed\n"
    return process


def test_the_second_of_two_jobs_is_refused_and_takes_over_as_soon_as_the_first_is_dead(tmp_path):
    with other_job(tmp_path) as first:
        try:
            with pytest.raises(OSError, match=f"process {first.pid} on .*, which still runs"):
                Owner(tmp_path).claim()
        finally:
            first.kill()
        # Before its parent, this process, asks for its exit code.
        begin = time.monotonic()
        while Path(f"/proc/{first.pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
            assert time.monotonic() - begin < 30
        assert (tmp_path / MARK).exists()
        second = Owner(tmp_path)
        second.claim()
        second.check()
    assert time.monotonic() - begin < backup_owner.TAKEOVER_SECONDS


def test_a_process_that_ends_by_itself_takes_its_mark_down(tmp_path):
    with other_job(tmp_path, "fail") as job:
        assert job.wait(60) == 1
    assert not (tmp_path / MARK).exists()


def test_a_process_that_has_the_number_of_a_dead_one_is_not_taken_for_it(tmp_path):
    mark = {"run": "of a dead one", **backup_owner._this_process()}
    mark |= {"pid": os.getppid(), "started": mark["started"] - 1000}
    (tmp_path / MARK).write_text(json.dumps(mark))
    begin = time.monotonic()
    Owner(tmp_path).claim()
    assert time.monotonic() - begin < backup_owner.TAKEOVER_SECONDS


@pytest.fixture
def elsewhere(monkeypatch):
    """Marks made now seem to come from another machine; times are short."""
    monkeypatch.setattr(backup_owner, "TOUCH_SECONDS", 0.1)
    monkeypatch.setattr(backup_owner, "_LOOK_SECONDS", 0.1)
    counted = iter(range(100))
    monkeypatch.setattr(backup_owner, "_machine", lambda _: f"machine {next(counted)}")


def test_on_another_machine_the_owner_lives_while_it_touches_its_mark(tmp_path, elsewhere):
    first = Owner(tmp_path)
    first.claim()
    with pytest.raises(OSError, match="which still runs"):
        Owner(tmp_path).claim()
    first.check()
    first.release()
    Owner(tmp_path).claim()


@pytest.mark.parametrize("content", [json.dumps({"run": "a", "machine": "far"}), "", "[1"])
def test_on_another_machine_a_dead_ones_folder_is_taken_after_a_short_time(
    tmp_path, elsewhere, monkeypatch, content
):
    monkeypatch.setattr(backup_owner, "TAKEOVER_SECONDS", 0.5)
    (tmp_path / MARK).write_text(content)
    owner = Owner(tmp_path)
    owner.claim()
    owner.check()


def test_a_mark_that_was_deleted_comes_back_and_a_forgotten_owners_goes(tmp_path):
    owner = Owner(tmp_path / "folder")
    owner.claim()
    (tmp_path / "folder" / MARK).unlink()
    owner.check()
    assert (tmp_path / "folder" / MARK).exists()
    del owner
    gc.collect()
    assert not (tmp_path / "folder" / MARK).exists()


# --- In `fit` ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_job_is_refused_on_all_workers_while_another_one_has_the_folder(
    cluster, tmp_path, workers
):
    with other_job(tmp_path) as job:
        try:
            for error, _ in cluster(workers).run(restore_into, str(tmp_path), {}, timeout=120):
                assert f"process {job.pid} on" in error
                assert "give each a folder of its own" in error
        finally:
            job.kill()


def fit_with(strategy, *callbacks):
    """The error of a `fit`."""
    x, y = digits(4 * BATCH)
    try:
        build(strategy).fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=list(callbacks))
    except (OSError, RuntimeError) as error:
        return str(error)
    return None


def fit_twice(strategy, folder):
    """Two callbacks on one folder; then a `fit` that fails, and one after it."""

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise RuntimeError("a callback that fails on all workers")

    def backups():
        return sc.callbacks.BackupAndRestore(folder)

    kept = backups()
    return [
        fit_with(strategy, backups(), backups()),
        fit_with(strategy, kept, Fails()),
        fit_with(strategy, backups()),
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_two_callbacks_on_a_folder_are_an_error_and_a_fit_after_a_failed_one_is_none(
    cluster, tmp_path, workers
):
    for both, failed, after in cluster(workers).run(fit_twice, str(tmp_path), timeout=120):
        assert "another BackupAndRestore of this process" in both
        assert "a callback that fails" in failed
        assert after is None
    assert list(tmp_path.iterdir()) == []


def lose_the_folder(strategy, folder):
    """Another job takes the folder over in the first epoch."""

    class Thief(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if strategy.extended._id_in_cluster == 0:
                (Path(folder) / MARK).write_text('{"run": "another", "pid": 7, "host": "far"}')

    x, y = digits(4 * BATCH)
    model = build(strategy)
    callbacks = [sc.callbacks.BackupAndRestore(folder), Thief()]
    try:
        model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=callbacks)
    except OSError as error:
        return str(error), int(model.optimizer.iterations.numpy())
    return None


def test_who_has_lost_the_folder_writes_nothing_there_and_ends(cluster, tmp_path):
    for error, iterations in cluster(2).run(lose_the_folder, str(tmp_path), timeout=120):
        assert "process 7 on far took it over" in error
        assert iterations == 4  # those of the first epoch
    assert [path.name for path in tmp_path.iterdir()] == [MARK]
