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

A backup is made in phases, of which each worker does its part in a thread of its own. When all are
through with one they tell each other, between two steps, what came of it, and begin the next.
"""

import contextlib
import os
import pathlib
import threading
from collections.abc import Callable, Generator
from typing import Any

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
        # Of the backup that is being written.
        self._phases: Generator[Callable[[], Any], list, None] | None = None
        self._part: _Part
        self._asked = 0

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
        self.begin(state, meta)
        self.finish()

    def begin(self, state: State, meta: dict) -> None:
        """Begins to write a backup, which `go_on` or `finish` bring to an end.

        Args:
            state, meta: as for `save`; nobody may change them until then.
        """
        self._phases = self._write(state, meta)
        self._asked, self._part = 0, _Part(next(self._phases))

    def go_on(self) -> None:
        """Goes on with the backup that is being written, if there is one; called after each step.

        Workers ask each other after 1, 2, 4, ... steps whether they are ready for the next phase.

        Raises:
            BackupError: It could not be written; the earlier one is still there.
        """
        self._asked += 1
        if self._phases is not None and self._asked & (self._asked - 1) == 0:
            self._meet()

    def finish(self) -> None:
        """Waits for the backup that is being written, if there is one.

        Raises:
            BackupError: It could not be written; the earlier one is still there.
        """
        while self._phases is not None:
            self._part.wait()
            self._meet()

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
            shards = Shards(paths, digests, meta.get("names", {}))
            return shards.state(self._rank, like) if now == old else shards.spread(old, like, now)

        return self._on_all(read, *_READ)

    def delete(self) -> None:
        """Deletes all backups, once all workers are done with them."""
        self._gather(None, "the end of backups")
        if self._rank == 0:
            with contextlib.suppress(OSError):  # another training has it now
                self._check_owner()
                self._discard_all()

    def _write(self, state, meta):
        """The phases of a backup: yields this worker's part, is sent what came of all parts."""

        def create():
            name = self._create() if self._rank == 0 else None
            return name, {name: digest(kept.parts[0].tobytes()) for name, kept in state.items()}

        (name, base), *_ = yield create
        place = self._folder / name

        def write():
            own = {
                f"{name}/{replica}": part
                for name, kept in state.items()
                for replica, part in enumerate(kept.parts)
                if (self._rank == 0 and replica == 0) or digest(part.tobytes()) != base[name]
            }
            return _counts(state), write_shard(shard(place, self._rank), own)

        def complete():
            if self._rank == 0:
                residuals, shards = zip(*of_each, strict=True)
                write_meta(place / META, {**meta, "residuals": residuals, "shards": shards})
                with contextlib.suppress(OSError):
                    self._discard_all(but=place)

        try:
            of_each = yield write
            yield complete
        except BackupError:
            with contextlib.suppress(OSError):
                shard(place, self._rank).unlink(missing_ok=True)
            self._gather(None, "the end of a failed backup")
            if self._rank == 0:
                backup_places.discard(place)
            raise

    def _meet(self):
        """Begins the next phase of a backup, if all workers are through with this one."""
        outcome = self._part.outcome()
        of_each = self._gather(outcome, self._purpose(_WRITE))
        if None in of_each:
            return
        results, problems = zip(*of_each, strict=True)
        phases, self._phases = self._phases, None
        try:
            self._raise_if_any(problems, *_WRITE)
        except BackupError as error:
            phases.throw(error)
        with contextlib.suppress(StopIteration):
            self._asked, self._part = 0, _Part(phases.send(list(results)))
            self._phases = phases

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


class _Part:
    """What a worker does for a phase of a backup while training goes on.

    Args:
        action: is run in a thread.
    """

    def __init__(self, action):
        self._outcome = None
        self._error = None
        self._thread = threading.Thread(
            target=self._run, args=(action,), name="scalecom-backup", daemon=True
        )
        self._thread.start()

    def wait(self):
        """Returns when it is done."""
        self._thread.join()

    def outcome(self):
        """Result and problem; None as long as it is not done."""
        if self._error is not None:
            raise self._error
        return self._outcome

    def _run(self, action):
        try:
            self._outcome = _attempt(action)
        except Exception as error:  # no problem of the folder
            self._error = error


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
