"""One training at a time has a folder of backups: the mark of the process that it belongs to.

The mark is a file that is created exclusively. Its owner touches it every few seconds while it
lives. A process that finds it
  * looks whether the owner runs, where both are on one machine, in one container;
  * elsewhere waits whether the mark is touched. No clocks are compared, and no locks are needed,
    which not every shared file system has.
So a restart after a crash takes over at once on the same machine, and within `TAKEOVER_SECONDS` on
another one. A process that ends by itself takes its mark down.
"""

import contextlib
import json
import os
import socket
import threading
import time
import weakref
from pathlib import Path

from absl import logging

MARK = "tf_scalecom-owner.json"
TOUCH_SECONDS = 4.0
# Several touches: a busy machine or file system may hold one up.
TAKEOVER_SECONDS = 20.0
_LOOK_SECONDS = 0.5
_ATTEMPTS = 100


class Owner:
    """The claim of one call to `fit` to a folder.

    Args:
        folder: that of the backups; it is made if it is not there.
    """

    def __init__(self, folder: Path):
        self._path = folder / MARK
        self._run = os.urandom(8).hex()
        self._release = lambda: None

    def claim(self) -> str:
        """Takes the folder; returns what all workers must read in it.

        Raises:
            OSError: Another process, which lives, has it, or the mark cannot be written.
        """
        attempts = 0
        while not self._create():
            attempts += 1
            if attempts > _ATTEMPTS:  # others come and go, or it is a link to nowhere
                raise OSError(f"{self._path} can neither be made nor read; delete it")
            before = _touched(self._path)
            found = read(self._path)
            if before is None:
                continue  # its owner has taken it down just now
            if _lives(self._path, found, before):
                raise FileExistsError(f"{_who(self._path)}, which still runs, backs up there")
            if read(self._path) == found:
                self._path.unlink(missing_ok=True)
        stopped = threading.Event()
        # At the end of `fit`, and if that fails, of this object or the interpreter.
        self._release = weakref.finalize(self, _take_down, self._path, self._run, stopped)
        threading.Thread(
            target=_touch_until, args=(stopped, self._path), name="scalecom-owner", daemon=True
        ).start()
        return self._run

    def check(self) -> None:
        """Raises OSError if the folder is another training's by now."""
        found = read(self._path)
        if not found:  # deleted, or out of reach for a moment: no other training did that
            with contextlib.suppress(OSError):
                self._create()
        elif found.get("run") != self._run:
            raise FileExistsError(
                "another BackupAndRestore of this process backs up there"
                if found.get("pid") == os.getpid()
                else f"{_who(self._path)} took it over"
            )

    def release(self) -> None:
        """Gives the folder up."""
        self._release()

    def _create(self):
        mark = json.dumps({"run": self._run, **_this_process()})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = self._path.open("x")
        except FileExistsError:
            return False
        try:
            with file:
                file.write(mark)
        except OSError:
            self._path.unlink()
            raise
        return True


def read(path: Path) -> dict:
    """The mark in a file; an empty one if it is not there, or not yet or badly written."""
    try:
        mark = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return mark if isinstance(mark, dict) else {}


def _who(path):
    mark = read(path)
    return f"process {mark.get('pid')} on {mark.get('host')}"


def _touch_until(stopped, path):
    while not stopped.wait(TOUCH_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(path)


def _take_down(path, run, stopped):
    stopped.set()
    if read(path).get("run") == run:
        path.unlink(missing_ok=True)


def _lives(path, mark, touched):
    """Whether the owner of a mark, last touched at `touched`, still runs."""
    here = _this_process()
    if here["machine"] and mark.get("machine") == here["machine"]:
        if mark.get("pid") == here["pid"]:
            # An earlier call to `fit` that failed, or a second callback of this one; `check` tells.
            return False
        runs = _runs(mark.get("pid"), mark.get("started"))
        if runs is not None:
            return runs
    logging.warning(
        "tf_scalecom: looking for %.0f s whether %s still backs up to %s.",
        TAKEOVER_SECONDS,
        _who(path),
        path.parent,
    )
    deadline = time.monotonic() + TAKEOVER_SECONDS
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        now = _touched(path)
        if now != touched:
            return now is not None
    return False


def _touched(path):
    """When a file was last touched, by the file system's clock; None if it is not there."""
    try:
        with path.open("rb") as file:  # NFS asks its server again when a file is opened
            status = os.fstat(file.fileno())
    except PermissionError:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _this_process():
    pid = os.getpid()
    host = socket.gethostname()
    return {"host": host, "machine": _machine(host), "pid": pid, "started": _started(pid)}


def _machine(host):
    """Where process ids mean the same: a machine since it booted, and a container on it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{host} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None  # not Linux


def _runs(pid, started):
    """Whether the process of an id that started then still runs; None if that cannot be seen."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    now = _started(pid)
    return None if now is None else now == started


def _started(pid):
    """When a process started, -1 if it has ended and its parent was not told yet, or None."""
    try:
        # <proc_pid_stat(5)>: after the name in parentheses come the state and 18 other fields.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return -1 if state in "ZX" else int(fields[18])
