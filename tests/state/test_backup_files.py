"""The files of backups, in one process: what counts as one, what is deleted, what is damaged."""

import json
import shutil
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tf_scalecom.state import backup, backup_files, backup_places
from tf_scalecom.state.backup import BackupError, BackupFolder
from tf_scalecom.state.backup_owner import MARK
from tf_scalecom.state.training_state import Kept

STATE = {
    "model.0": Kept([np.arange(300.0)]),
    "residual.0": Kept([np.ones(7, np.float32)], summable=True),
}


def alone(folder):
    """The folder, claimed by this process, the only worker."""
    backups = BackupFolder(folder, 0, lambda value, _: [value])
    backups.claim()
    return backups


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_backups_are_counted_and_the_earlier_ones_deleted(tmp_path):
    folder = alone(tmp_path)
    assert folder.latest() is None
    for epoch in range(3):
        folder.save({"model.0": Kept([np.full(3, epoch, np.float32)])}, {"epoch": epoch})
    meta = folder.latest()
    assert len(meta.pop("shards")) == 1
    assert meta == {"place": "backup-00000003", "epoch": 2, "residuals": [{}]}
    like = {"model.0": Kept([np.zeros(3, np.float32)])}
    (value,) = folder.load(folder.latest(), like)["model.0"].parts
    np.testing.assert_array_equal(value, [2, 2, 2])
    assert names(tmp_path) == ["backup-00000003", MARK]
    folder.delete()
    folder.release()
    assert names(tmp_path) == []


def saved_file(tmp_path, name):
    alone(tmp_path).save(STATE, {"epoch": 3, "variables": {}, "optimizer": {"beta": 0.3}})
    (file,) = tmp_path.glob(f"*/{name}")
    return file


def read_back(tmp_path):
    folder = alone(tmp_path)
    meta = folder.latest()
    return meta, {name: part.tolist() for name, ((part,), _) in folder.load(meta, STATE).items()}


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_backup_is_written_while_training_goes_on(tmp_path, monkeypatch):
    folder, disk = alone(tmp_path), threading.Event()
    folder.save(STATE, {"epoch": 1})
    monkeypatch.setattr(
        backup, "write_shard", lambda *file: disk.wait(30) and backup_files.write_shard(*file)
    )
    folder.begin(STATE, {"epoch": 2})
    until(lambda: len(names(tmp_path)) == 3)  # the new one is begun
    for _ in range(10):
        folder.go_on()
    assert folder.latest()["epoch"] == 1
    disk.set()
    until(lambda: folder.go_on() or folder.latest()["epoch"] == 2)
    folder.finish()
    assert names(tmp_path) == ["backup-00000002", MARK]


def test_a_backup_that_fails_meanwhile_is_reported_and_the_one_before_stays(tmp_path, monkeypatch):
    folder = alone(tmp_path)
    folder.save(STATE, {"epoch": 1})

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(backup, "write_shard", fail)
    folder.begin(STATE, {"epoch": 2})
    with pytest.raises(BackupError, match=r"worker 0 \(OSError: no space left\)"):
        folder.finish()
    folder.finish()  # it was said
    assert names(tmp_path) == ["backup-00000001", MARK] and folder.latest()["epoch"] == 1


@pytest.mark.parametrize(
    "value",
    [
        np.float64(0.1),
        np.zeros((0, 3), np.float32),
        np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
        np.arange(9, dtype=tf.bfloat16.as_numpy_dtype),
        np.array([True, False, True]),
        np.arange(70_000).reshape(2, 1, -1),
    ],
    ids=lambda value: f"{value.dtype}{value.shape}",
)
def test_values_of_any_form_come_back_without_a_copy(tmp_path, value):
    state = {"model.0": Kept([np.float32(1)]), "model.1": Kept([np.asarray(value)])}
    folder = alone(tmp_path)
    folder.save(state, {"epoch": 1})
    (part,) = folder.load(folder.latest(), state)["model.1"].parts
    assert part.dtype == value.dtype and part.shape == value.shape
    np.testing.assert_array_equal(part, value)
    assert not part.flags.owndata  # it is where it lies in the file


# --- What is deleted -----------------------------------------------------------------------------


FOREIGN = [
    "20251126/results.csv",
    "00000001/worker-0.npz",
    "backup-00000009/results.csv",
    "backup-00000009/backup.json",
    "probe",
    "backup-2",
    "99999999/backup.json",
]


def write_foreign(folder):
    for file in FOREIGN:
        (folder / file).parent.mkdir(exist_ok=True, parents=True)
        (folder / file).write_text("precious")


def test_nothing_of_others_is_taken_for_a_backup_or_deleted(tmp_path):
    write_foreign(tmp_path)
    before = names(tmp_path)
    folder = alone(tmp_path)
    assert folder.latest() is None
    for epoch in (1, 2):
        folder.save(STATE, {"epoch": epoch})
    assert folder.latest()["epoch"] == 2
    # Not even by the name is a folder of someone else's in the way.
    assert set(names(tmp_path)) - set(before) == {MARK, "backup-00000011"}
    folder.delete()
    folder.release()
    assert names(tmp_path) == before
    assert all((tmp_path / file).read_text() == "precious" for file in FOREIGN)


def test_a_backup_copied_under_another_name_or_with_a_users_file_in_it_stays(tmp_path, caplog):
    folder = alone(tmp_path)
    folder.save(STATE, {"epoch": 1})
    first = tmp_path / "backup-00000001"
    shutil.copytree(first, tmp_path / "backup-00000000")
    (first / "notes.txt").write_text("precious")
    folder.save(STATE, {"epoch": 2})
    assert "notes.txt" in names(first) and "backup.json" not in names(first)
    assert "backup.json" in names(tmp_path / "backup-00000000")
    assert folder.latest()["epoch"] == 2
    (first / "notes.txt").unlink()
    folder.save(STATE, {"epoch": 3})
    assert names(tmp_path) == ["backup-00000000", "backup-00000003", MARK]


def test_what_a_killed_backup_left_does_not_count_and_goes_with_the_next(tmp_path):
    folder = alone(tmp_path)
    folder.save(STATE, {"epoch": 1})
    folder.save(STATE, {"epoch": 2})
    half = backup_places.create(tmp_path)
    (half / "worker-0.npz").write_bytes(b"half of")
    (half / "worker-1.npz.part").write_bytes(b"less")
    assert folder.latest()["epoch"] == 2
    folder.save(STATE, {"epoch": 3})
    assert names(tmp_path) == ["backup-00000004", MARK]


def earlier_backup(folder, number, epoch, **fields):
    """One of format 1."""
    place = folder / f"{number:08d}"
    place.mkdir()
    arrays = {f"{name}/0": part for name, ((part,), _) in STATE.items()}
    shards = [backup_files.write_shard(place / "worker-0.npz", arrays)]
    content = {"epoch": epoch, "variables": {}, "optimizer": {"class_name": "SGD", "config": {}}}
    content |= {"shards": shards, "residuals": [1], **fields}
    digest = backup_files._digest_of_content(content)
    meta = {"format": 1, "tf_scalecom": "0.1.0", "digest": digest, "content": content}
    (place / "backup.json").write_text(json.dumps(meta))
    return place


def test_a_backup_of_format_1_is_read_and_then_deleted_if_it_is_ours_without_doubt(tmp_path):
    damaged = earlier_backup(tmp_path, 6, epoch=6)
    (damaged / "backup.json").write_text("{}")
    earlier_backup(tmp_path, 7, epoch=7)
    folder = alone(tmp_path)
    assert (folder.latest()["place"], folder.latest()["epoch"]) == ("00000007", 7)
    _, state = read_back(tmp_path)
    assert state == {name: part.tolist() for name, ((part,), _) in STATE.items()}
    folder.save(STATE, {"epoch": 8})
    assert names(tmp_path) == ["00000006", "backup-00000008", MARK]


def test_a_backup_that_fails_leaves_nothing(tmp_path, monkeypatch):
    folder = alone(tmp_path)
    folder.save(STATE, {"epoch": 1})

    def fail(*_):
        raise OSError("no space left")

    for function in ("write_shard", "write_meta"):
        with monkeypatch.context() as patch:
            patch.setattr(f"tf_scalecom.state.backup.{function}", fail)
            with pytest.raises(BackupError, match="no space left"):
                folder.save(STATE, {"epoch": 2})
        assert names(tmp_path) == ["backup-00000001", MARK]
    with monkeypatch.context() as patch:
        patch.setattr("tf_scalecom.state.backup_places.write_whole", fail)
        with pytest.raises(BackupError, match="no space left"):
            folder.save(STATE, {"epoch": 2})
    assert names(tmp_path) == ["backup-00000001", MARK]


# --- What is damaged -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["worker-0.npz", "backup.json"])
def test_no_damage_to_a_file_goes_unnoticed(tmp_path, name):
    file = saved_file(tmp_path, name)
    content, whole = file.read_bytes(), read_back(tmp_path)
    damaged = [b"", content[: len(content) // 2], content[:-1], content + b"x", b"[" * 100_000]
    for place in range(0, len(content), 1 + len(content) // 300):
        damaged.append(bytearray(content))
        damaged[-1][place] ^= 1
    noticed = 0
    for other in damaged:
        file.write_bytes(other)
        try:
            assert read_back(tmp_path) == whole  # an indent may have become another one
        except BackupError as error:
            noticed += 1
            assert f"{name}: expected" in str(error) and ", received" in str(error)
            assert "Delete the backups there" in str(error)
    assert noticed > len(damaged) / 2


def test_a_lost_file_is_an_error(tmp_path):
    saved_file(tmp_path, "worker-0.npz").unlink()
    with pytest.raises(BackupError, match=r"No such file .*worker-0\.npz.*Delete the backups"):
        read_back(tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda _: {}, r"a field 'format', received \[\]"),
        (lambda _: [1], "a field 'format', received list"),
        (lambda meta: {"epoch": 3, "residuals": [1]}, r"received \['epoch', 'residuals'\]"),
        (lambda meta: {**meta, "format": 3, "tf_scalecom": "9.0"}, "received 3 of tf_scalecom 9.0"),
        (lambda meta: {"format": 1}, r"received another \(the file's fields: \['format'\]"),
        (lambda meta: {**meta, "content": {}}, "is damaged or was edited"),
    ],
)
def test_a_backup_of_another_kind_is_refused(tmp_path, change, complaint):
    file = saved_file(tmp_path, "backup.json")
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(BackupError, match=f"backup.json: expected .*{complaint}"):
        alone(tmp_path).latest()


def test_each_optimizer_has_its_own_number_of_residuals(tmp_path):
    """One that is hierarchical has one residual on a worker of two replicas, another one two."""
    ones = np.ones(3, np.float32)
    folder = alone(tmp_path)

    def state(parts, parts_of_go):
        return {"residual.0": Kept(parts, True), "residual[go].0": Kept(parts_of_go, True)}

    folder.save(state([ones, 2 * ones], [4 * ones]), {})
    loaded = folder.load(folder.latest(), state([ones], [ones, ones]))
    assert [[part[0] for part in kept.parts] for kept in loaded.values()] == [[3], [2, 2]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int64", "bool"])
def test_values_of_any_dtype_come_back(tmp_path, dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    folder = alone(tmp_path)
    saved = {"model.0": Kept([values]), "model.1": Kept([values[0, 1]])}
    folder.save(saved, {})
    state = folder.load(folder.latest(), saved)
    for got, wanted in (
        (state["model.0"].parts[0], values),
        (state["model.1"].parts[0], values[0, 1]),
    ):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        assert got.tobytes() == wanted.tobytes()


def test_a_folder_that_cannot_be_written_is_an_error_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BackupError, match="writable"):
        alone(tmp_path / "file" / "backup")
