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
import os
import pathlib
import re
import shutil
from collections.abc import Callable

from absl import logging

from tf_scalecom.backup_files import (
    Shards,
    digest,
    read_meta,
    write_meta,
    write_shard,
)
from tf_scalecom.training_state import State, is_residual
from tf_scalecom.whole_files import write_whole

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
            write_whole(probe, lambda file: file.write(token.encode()))

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
        digests = {name: digest(parts[0].tobytes()) for name, parts in state.items()}
        (base, number), *_ = self._gather([digests, self._next()], "the state to back up")
        place = self._folder / f"{number:08d}"
        own = {
            f"{name}/{replica}": part
            for name, parts in state.items()
            for replica, part in enumerate(parts)
            if (self._rank == 0 and replica == 0) or digest(part.tobytes()) != base[name]
        }

        def write_own():
            place.mkdir(parents=True, exist_ok=True)
            return write_shard(_shard(place, self._rank), own)

        def complete():
            residuals, shards = zip(*of_each, strict=True)
            write_meta(place / _META, {**meta, "residuals": residuals, "shards": shards})

        try:
            written = self._on_all(write_own, *_WRITE)
            of_each = self._gather([_residuals_of_each(state), written], "files of the backup")
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
            What `save` was given, and "number"; "residuals": how many each worker had of a
            variable, one per replica or one in all; "shards": digests of the workers' files.

        Raises:
            BackupError: It cannot be read, or is damaged, or of another version.
        """
        latest = max((place.name for place in self._complete()), key=int, default=None)
        number = self._gather(latest, "the latest backup")[0]
        if number is None:
            return None

        def read():
            return {"number": number, **read_meta(self._folder / number / _META)}

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
            BackupError: It cannot be read, or is damaged.
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
            ranks = {0, self._rank} if now == old else range(len(old))
            paths = {rank: _shard(place, rank) for rank in ranks}
            with Shards(paths, dict(enumerate(meta["shards"]))) as shards:
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
        return [place for place in self._folder.iterdir() if re.fullmatch("[0-9]{8,}", place.name)]

    def _complete(self):
        return [place for place in self._numbered() if (place / _META).exists()]

    def _on_all(self, action, verb, advice):
        """Runs an action on each worker; raises on all if it fails on one."""
        result, problem = None, None
        try:
            result = action()
        except (OSError, ValueError) as error:
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


def _residuals_of_each(state):
    """How many residuals of each variable a worker has; with none at all, 1."""
    return max((len(parts) for name, parts in state.items() if is_residual(name)), default=1)


def _shard(place, rank):
    return place / f"worker-{rank}.npz"
