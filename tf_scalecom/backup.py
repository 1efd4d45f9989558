"""Backups of a training run on several workers: complete, or not there.

    folder/
      00000007/
        worker-0.npz     the chief's state, all of it
        worker-1.npz     what is different on worker 1: residuals above all
        backup.json      written last, once all workers have written theirs

Each file is written under another name, synced to disk and renamed. An earlier backup is deleted
only after a later one is complete, so there is one whatever happens in between.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import zipfile
from collections.abc import Callable

import numpy as np
from absl import logging

from tf_scalecom.training_state import State, is_residual

_META = "backup.json"
_WRITE = (
    "write a backup to",
    "They all need this one folder, writable, with space for two backups.",
)
_READ = ("read the backup in", "Delete the folder to start from the beginning.")


class BackupError(OSError):
    """A backup could not be written or read, on some worker; the message says which and why."""


class BackupFolder:
    """The backups of one training run.

    All methods are collective: every worker makes the same calls.

    Args:
        folder: a folder that all workers share.
        rank: number of this worker; worker 0 is the chief.
        gather: `Workers.gather`, or a function that does the same for one worker.
    """

    def __init__(self, folder: os.PathLike, rank: int, gather: Callable[[object, str], list]):
        self._folder = pathlib.Path(folder)
        self._rank = rank
        self._gather = gather

    def check_shared(self) -> None:
        """Raises unless the chief can write to the folder and all workers see it.

        Raises:
            BackupError: for whom it does not hold.
        """
        probe = self._folder / "probe"
        token = os.urandom(8).hex()

        def write():
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(probe, lambda file: file.write(token.encode()))

        def see():
            if probe.read_text() != wanted:
                raise OSError("another folder than the chief's is mounted there")

        self._on_chief(write, *_WRITE)
        wanted = self._gather(token, "the folder of backups")[0]
        try:
            self._on_all(see, *_WRITE)
        finally:
            if self._rank == 0:
                probe.unlink(missing_ok=True)

    def save(self, state: State, meta: dict) -> None:
        """Writes a backup, then deletes the earlier ones.

        Args:
            state: this worker's.
            meta: what JSON can hold; the chief's is kept.

        Raises:
            BackupError: It could not be written; the earlier one is still there.
        """
        digests = [{name: _digest(parts[0]) for name, parts in state.items()}, self._next()]
        (base, number), *_ = self._gather(digests, "the state to back up")
        place = self._folder / f"{number:08d}"
        own = {
            f"{name}/{replica}": part
            for name, parts in state.items()
            for replica, part in enumerate(parts)
            if (self._rank == 0 and replica == 0) or _digest(part) != base[name]
        }

        def write_shard():
            place.mkdir(parents=True, exist_ok=True)
            _write(_shard(place, self._rank), lambda file: np.savez(file, **_plain(own)))

        def complete():
            text = json.dumps({**meta, "residuals": residuals}, indent=1)
            _write(place / _META, lambda file: file.write(text.encode()))

        residuals = self._gather(_residuals_of_each(state), "numbers of residuals to back up")
        try:
            self._on_all(write_shard, *_WRITE)
            self._on_chief(complete, *_WRITE)
        except BackupError:
            with contextlib.suppress(OSError):
                _shard(place, self._rank).unlink(missing_ok=True)
            raise
        if self._rank == 0:
            for earlier in self._numbered():
                if earlier != place:
                    shutil.rmtree(earlier, ignore_errors=True)

    def latest(self) -> dict | None:
        """The metadata of the latest backup, or None if there is none.

        Returns:
            What `save` was given, and "number" and "residuals": how many each worker had of a
            variable, one per replica or one in all.

        Raises:
            BackupError: It cannot be read.
        """
        latest = max((place.name for place in self._complete()), default=None)
        number = self._gather(latest, "the latest backup")[0]
        if number is None:
            return None

        def read():
            return {"number": number, **json.loads((self._folder / number / _META).read_text())}

        return self._on_all(read, *_READ)

    def load(self, meta: dict, like: State) -> State:
        """Reads this worker's state.

        Args:
            meta: what `latest` returned.
            like: this worker's state as it is, for its structure and dtypes.

        Returns:
            The state as it was saved. With another number of residuals than it was saved with, each
            is an equal part of the sum of all.

        Raises:
            BackupError: It cannot be read.
        """
        place, old = self._folder / meta["number"], meta["residuals"]
        now = self._gather(_residuals_of_each(like), "numbers of residuals to restore")
        if now != old:
            logging.warning(
                "tf_scalecom: the backup in %s holds the residuals of %d replicas. Each of the %d "
                "of now starts with an equal part of their sum.",
                self._folder,
                sum(old),
                sum(now),
            )

        def read():
            with _Shards(place, {0, self._rank} if now == old else range(len(old))) as shards:
                if now == old:
                    return shards.state(self._rank, like)
                return shards.spread(old, like, sum(now))

        return self._on_all(read, *_READ)

    def delete(self) -> None:
        """Deletes all backups, once all workers are done with them."""
        self._gather(None, "the end of backups")
        if self._rank == 0:
            for place in self._numbered():
                shutil.rmtree(place, ignore_errors=True)

    def _next(self):
        return 1 + max((int(place.name) for place in self._numbered()), default=0)

    def _numbered(self):
        if not self._folder.is_dir():
            return []
        return [place for place in self._folder.iterdir() if place.name.isdecimal()]

    def _complete(self):
        return [place for place in self._numbered() if (place / _META).exists()]

    def _on_all(self, action, verb, advice):
        """Runs an action on each worker; raises on all if it fails on one."""
        result, problem = None, None
        try:
            result = action()
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            problem = f"{type(error).__name__}: {error}"
        problems = self._gather(problem, f"whether all could {verb} the folder")
        failed = [f"worker {i} ({p})" for i, p in enumerate(problems) if p]
        if failed:
            raise BackupError(
                f"Expected all workers to {verb} {self._folder}; received an error on "
                f"{', '.join(failed)}. {advice}"
            )
        return result

    def _on_chief(self, action, *words):
        return self._on_all(action if self._rank == 0 else lambda: None, *words)


class _Shards:
    """The files of some workers; what one does not have is the chief's."""

    def __init__(self, place, ranks):
        self._files = {rank: np.load(_shard(place, rank), allow_pickle=False) for rank in ranks}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file in self._files.values():
            file.close()

    def state(self, rank, like):
        return {
            name: [self._part(rank, i, name, part.dtype) for i, part in enumerate(parts)]
            for name, parts in like.items()
        }

    def spread(self, old_counts, like, count):
        def part(name, dtype):
            if not is_residual(name):
                return self._part(0, 0, name, dtype)
            every = (
                self._part(rank, replica, name, dtype).astype(np.float64)
                for rank, old_count in enumerate(old_counts)
                for replica in range(old_count)
            )
            return (sum(every) / count).astype(dtype)

        return {name: [part(name, parts[0].dtype)] * len(parts) for name, parts in like.items()}

    def _part(self, rank, replica, name, dtype):
        for file, place in ((self._files[rank], replica), (self._files[0], 0)):
            key = f"{name}/{place}"
            if key in file:
                return _typed(file[key], dtype)
        raise KeyError(f"no variable {name} in the backup")


def _residuals_of_each(state):
    """How many residuals of each variable a worker has; with none at all, 1."""
    return max((len(parts) for name, parts in state.items() if is_residual(name)), default=1)


def _shard(place, rank):
    return place / f"worker-{rank}.npz"


def _write(path, write: Callable):
    """All of a file or none of it, on disk when this returns."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(array):
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


# NumPy's files know neither bfloat16 nor float8: such arrays are kept as integers of their size.


def _plain(arrays):
    return {
        key: a.view(f"u{a.dtype.itemsize}") if a.dtype.kind == "V" else a
        for key, a in arrays.items()
    }


def _typed(array, dtype):
    return array.view(dtype) if np.dtype(dtype).kind == "V" else array
