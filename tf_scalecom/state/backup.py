"""Backups of a training run on several workers: complete, or not there.

    folder/
      tf_scalecom-owner.json     whose backups these are, while that training runs (`backup_owner`)
      backup-00000007/           (`backup_places`)
        tf_scalecom-backup.txt   written first
        worker-0.npz             the chief's state, all of it
        worker-1.npz             what is different on worker 1: residuals above all
        backup.json              written last, once all workers have written theirs

Each file is written under another name, synced to disk and renamed. An earlier backup is deleted
only after a later one is complete, so there is one whatever happens in between.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable

from absl import logging

from tf_scalecom.state import backup_owner, backup_places
from tf_scalecom.state.backup_files import Shards, digest, read_meta, write_meta, write_shard
from tf_scalecom.state.backup_places import META, shard
from tf_scalecom.state.training_state import State, group_of

_WRITE = (
    "write a backup to",
    "They all need this one folder, writable, with space for two backups.",
)
_OWN = (
    "back up to",
    "They all need this one folder, writable, with space for two backups, and no other training "
    "may use it: give each a folder of its own.",
)
_READ = ("read the backup in", "Delete the backups there to start from the beginning.")


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
        self._owner: backup_owner.Owner | None = None  # the chief's

    def claim(self) -> None:
        """Takes the folder for this training, until `release` or the process's end.

        Raises:
            BackupError: The chief cannot write to it, not all workers see it, or another training
                uses it.
        """
        owner_mark = self._folder / backup_owner.MARK

        def take():
            self._owner = backup_owner.Owner(self._folder)
            return self._owner.claim()

        def see():
            if backup_owner.read(owner_mark).get("run") != run:
                raise OSError("another folder than the chief's is mounted there")

        run = self._on_chief(take, *_OWN)
        try:
            self._on_all(see, *_OWN)
        except BackupError:
            self.release()
            raise

    def check_claim(self) -> None:
        """Raises unless the folder is still this training's.

        Raises:
            BackupError: Another one has it.
        """
        self._on_chief(self._check_owner, *_OWN)

    def release(self) -> None:
        """Gives the folder up, for others to use."""
        if self._owner is not None:
            self._owner.release()

    def save(self, state: State, meta: dict) -> None:
        """Writes a backup, then deletes the earlier ones.

        Args:
            state: this worker's.
            meta: what JSON can hold; the chief's is kept.

        Raises:
            BackupError: It could not be written; the earlier one is still there.
        """
        digests = {name: digest(kept.parts[0].tobytes()) for name, kept in state.items()}
        place = self._folder / self._on_chief(self._create, *_WRITE)
        base, *_ = self._gather(digests, "the state to back up")
        own = {
            f"{name}/{replica}": part
            for name, kept in state.items()
            for replica, part in enumerate(kept.parts)
            if (self._rank == 0 and replica == 0) or digest(part.tobytes()) != base[name]
        }

        def complete():
            residuals, shards = zip(*of_each, strict=True)
            write_meta(place / META, {**meta, "residuals": residuals, "shards": shards})

        try:
            written = self._on_all(lambda: write_shard(shard(place, self._rank), own), *_WRITE)
            of_each = self._gather([_counts(state), written], "files of the backup")
            self._on_chief(complete, *_WRITE)
        except BackupError:
            with contextlib.suppress(OSError):
                shard(place, self._rank).unlink(missing_ok=True)
            self._gather(None, "the end of a failed backup")
            if self._rank == 0:
                backup_places.discard(place)
            raise
        if self._rank == 0:
            self._discard_all(but=place)

    def latest(self) -> dict | None:
        """The metadata of the latest backup, or None if there is none.

        Returns:
            What `save` was given, and "place": its folder's name; "residuals": group of summable
            variables -> how many of each a worker had, one per replica or one in all, of each
            worker; "shards": digests of the workers' files.

        Raises:
            BackupError: It cannot be read, or is damaged, or of another version.
        """
        name = self._on_chief(self._latest, *_READ)
        if name is None:
            return None

        def read():
            return {"place": name, **read_meta(self._folder / name / META)}

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
        place, old = self._folder / meta["place"], meta["residuals"]
        now = self._gather(_counts(like), "numbers of residuals to restore")
        if now != old:
            logging.warning(
                "tf_scalecom: the backup in %s holds the residuals of %d replicas. Each of the %d "
                "of now starts with an equal part of their sum.",
                self._folder,
                _replicas(old),
                _replicas(now),
            )

        def read():
            ranks = {0, self._rank} if now == old else range(len(old))
            paths = {rank: shard(place, rank) for rank in ranks}
            digests = dict(enumerate(meta["shards"]))
            with Shards(paths, digests, meta.get("names", {})) as shards:
                if now == old:
                    return shards.state(self._rank, like)
                return shards.spread(old, like, now)

        return self._on_all(read, *_READ)

    def delete(self) -> None:
        """Deletes all backups, once all workers are done with them."""
        self._gather(None, "the end of backups")
        if self._rank == 0:
            with contextlib.suppress(OSError):  # another training has it now
                self._check_owner()
                self._discard_all()

    def _create(self):
        self._check_owner()
        return backup_places.create(self._folder).name

    def _latest(self):
        places = backup_places.complete(self._folder)
        return max(places, key=backup_places.number).name if places else None

    def _discard_all(self, but=None):
        for place in backup_places.backups(self._folder):
            if place != but:
                backup_places.discard(place)

    def _check_owner(self):
        if self._owner is None:
            raise OSError("the folder was not claimed")
        self._owner.check()

    def _on_all(self, action, *words):
        """Runs an action on each worker; raises on all if it fails on one."""
        result, problem = _attempt(action)
        self._raise_if_any(self._gather(problem, self._purpose(words)), *words)
        return result

    def _on_chief(self, action, *words):
        """Runs an action on the chief, and returns its result on all; raises on all likewise."""
        outcome = _attempt(action) if self._rank == 0 else None
        (result, problem), *_ = self._gather(outcome, self._purpose(words))
        self._raise_if_any([problem], *words)
        return result

    def _purpose(self, words):
        return f"whether all could {words[0]} the folder"

    def _raise_if_any(self, problems, verb, advice):
        failed = [f"worker {i} ({p})" for i, p in enumerate(problems) if p]
        if failed:
            raise BackupError(
                f"Expected all workers to {verb} {self._folder}; received an error on "
                f"{', '.join(failed)}. {advice}"
            )


def _attempt(action):
    """Result and problem of an action."""
    try:
        return action(), None
    except (OSError, ValueError) as error:
        return None, f"{type(error).__name__}: {error}"


def _counts(state):
    """How many values of each summable variable a worker has, by group."""
    return {group_of(name): len(kept.parts) for name, kept in state.items() if kept.summable}


def _replicas(residuals):
    """How many replicas workers with such residuals have; each worker one, if there are none."""
    return sum(max(groups.values(), default=1) for groups in residuals)
