"""Ends collectives that wait for a worker which will not come, and says which one.

TensorFlow notices a worker that died, but depending on who waited for whom it takes up to its
heartbeat limit, and if it is the first worker it does not name it. It does not notice at all a
worker that lives and does not come: it sleeps in Python, sits in a debugger, or has left the
training loop. TensorFlow's own limit for collectives (`CommunicationOptions.timeout_seconds`)
starts a thread for each call that lives as long as the limit, so it serves for debugging only. One
thread that looks at the launchers' counts once a second does all this and costs a step nothing.
"""

import atexit
import dataclasses
import functools
import threading
import time
import weakref
from collections.abc import Iterable, Mapping

import tensorflow as tf

from tf_scalecom.compat.tensorflow_runtime import eager_context
from tf_scalecom.workers import different_calls, worker_notes
from tf_scalecom.workers.collectives import CollectiveLauncher
from tf_scalecom.workers.failure_cause import FailureCause

DEFAULT_SECONDS = 600.0
_PAUSE_SECONDS = 1.0
# When a collective has been under way for this long, and again after as long, the peers are asked
# for a sign of life. TensorFlow answers in threads of its own, however busy Python is: a process
# that leaves two questions in a row unanswered is stopped, or its machine out of reach.
_ASK_AFTER_SECONDS = 1.0
_ANSWER_SECONDS = 4.0
# Workers that wait in different calls may just have left the same one, if it moves much data over
# a slow network, and will move on. After this long, they will not.
_STUCK_AFTER_SECONDS = 30.0
_LAST_CALL_SECONDS = 10.0
_NUMBER = ", call "
_SILENT = "does not answer: it is stopped, or out of reach"


def watch(
    launchers: Iterable[CollectiveLauncher],
    name: str,
    peers: Mapping[str, str],
    limit_seconds: float,
) -> None:
    """Has the collectives of some launchers watched, as long as there are these.

    One watchdog does it for all strategies of the process, which TensorFlow itself may keep.

    Args:
        launchers: the launchers.
        name: this process's task, e.g. "worker 0".
        peers: the tasks that take part in the collectives with it, name -> address.
        limit_seconds: the longest that one collective may take; 0 is no limit, so that only a
            worker that has died or is stopped ends the wait.
    """
    _of_this_process(name, tuple(peers.items())).add(launchers, limit_seconds or float("inf"))


@functools.cache
def _of_this_process(name, peers) -> "_Watchdog":
    return _Watchdog(name, dict(peers))


@dataclasses.dataclass
class _Watched:
    """The call under way on a launcher: its number, or None, and when it was first seen."""

    number: int | None
    since: float
    limit: float


class _Watchdog:
    def __init__(self, name: str, peers: Mapping[str, str]):
        self._name = name
        self._peers = peers
        self._watched: weakref.WeakKeyDictionary[CollectiveLauncher, _Watched] = (
            weakref.WeakKeyDictionary()
        )
        self._watched_changes = threading.Lock()
        # Of the launcher whose collective waits longest.
        self._limit = float("inf")
        self._note = worker_notes.WorkerNote(name)
        self._failure_cause = FailureCause(name, self._gone)
        # Which calls all workers were last seen to wait in, and how long this one had then.
        self._calls: dict[str, str | None] = {}
        self._calls_since = 0.0
        self._stopped = threading.Event()
        # Daemon: the end of the main thread is the end of training. It must not be inside
        # TensorFlow, though, when the interpreter goes.
        self._thread = threading.Thread(target=self._watch, name="scalecom-watchdog", daemon=True)
        self._thread.start()
        atexit.register(self._end_of_process)

    def add(self, launchers, limit):
        """Watches these, too."""
        with self._watched_changes:
            for launcher in launchers:
                self._watched[launcher] = _Watched(None, 0.0, limit)

    def stop(self):
        """Ends the watch."""
        self._stopped.set()
        self._failure_cause.stop()
        self._note.stop()
        self._thread.join(_LAST_CALL_SECONDS)

    def _end_of_process(self):
        self.stop()
        self._failure_cause.leave()

    def _watch(self):
        asked_at = 0.0
        while not self._stopped.wait(_PAUSE_SECONDS):
            waited, call = self._longest_wait()
            asked_at = min(asked_at, waited)  # the next call begins at 0 again
            ask_after = min(_ASK_AFTER_SECONDS, self._limit / 4)
            ask = waited - asked_at >= ask_after
            if ask and self._abort_if_gone(waited):
                return
            self._note.write(call if waited > ask_after else None)
            if waited > self._limit:
                self._abort_late(waited)
                return
            if ask:
                asked_at = waited
                if self._abort_if_apart(waited):
                    return

    def _longest_wait(self):
        """For how many seconds a collective has been under way, 0 if none is, and which."""
        now = time.monotonic()
        with self._watched_changes:
            watched = dict(self._watched)
        for launcher, seen in watched.items():
            # In this order: a call that ends in between is not taken for one under way.
            begun, ended = launcher.begun.numpy(), launcher.ended.numpy()
            if begun == ended:
                seen.number, seen.since = None, now
            elif begun != seen.number:
                seen.number, seen.since = begun, now
        if not watched:
            return 0.0, None
        launcher, seen = min(watched.items(), key=lambda item: item[1].since)
        self._limit = seen.limit
        call, purpose = launcher.last_call()
        # What comes before the number is compared, what comes after is for people.
        return now - seen.since, f"{call}{_NUMBER}{seen.number}" + (
            f" ({purpose})" if purpose else ""
        )

    def _gone(self):
        """The peers that do not answer, in words."""
        gone = []
        for peer in self._peers:
            fault = _fault(peer) and _fault(peer)
            if fault is not None:
                gone.append(f"{_full_name(peer)} ({self._peers[peer]}), which {fault}")
            if fault == _SILENT or self._stopped.is_set():
                break  # no time for more questions; one who fails lets the others know
        return gone

    def _abort_if_gone(self, waited):
        gone = self._gone()
        if gone:
            self._abort(
                tf.errors.UNAVAILABLE,
                f"has waited {waited:.0f} s in a collective for {'; '.join(gone)}. Look for the "
                "cause in the log there; one that ends without a word may have been killed for "
                "want of memory.",
            )
        return bool(gone)

    def _abort_if_apart(self, waited):
        """Aborts if all workers wait, but not all in the same call, and nothing has moved since."""
        calls = self._calls_of_all()
        if None in calls.values():
            return False  # it may still come
        if calls != self._calls:
            self._calls, self._calls_since = calls, waited
        kinds = _kinds(calls)
        apart = len(kinds) > 1 and waited - self._calls_since >= min(
            _STUCK_AFTER_SECONDS, self._limit / 4
        )
        if apart:
            self._abort(
                tf.errors.FAILED_PRECONDITION,
                f"has waited {waited:.0f} s, as all workers have, but not for the same: "
                + "; ".join(f"{_full_name(task)} is in {call}" for task, call in calls.items())
                + f". {different_calls.advice(kinds)}",
            )
        return apart

    def _calls_of_all(self):
        """What each worker waits in, task -> call; None for one that has no note."""
        return {self._name: self._note.text, **{p: worker_notes.read(p) for p in self._peers}}

    def _abort_late(self, waited):
        calls = self._calls_of_all()
        absent = ", ".join(_full_name(peer) for peer in self._peers if calls[peer] is None)
        if absent:
            whom = (
                f"{absent}, alive but in no collective: asleep, in a debugger, or out of the "
                "training loop (an error, another number of steps). Look at the log there"
            )
        elif len(kinds := _kinds(calls)) == 1:
            whom = (
                "the others, which wait in the same call: what they send does not arrive in time. "
                "Look at the network between them, e.g. by `python -m tf_scalecom doctor "
                "--bandwidth`"
            )
        else:
            whom = f"the others, which wait in other calls. {different_calls.advice(kinds)}"
        self._abort(
            tf.errors.DEADLINE_EXCEEDED,
            f"has waited {waited:.0f} s in a collective for {whom.removesuffix('.')}. "
            "CommunicationOptions(timeout_seconds=...) sets the limit.",
        )

    def _abort(self, code, message):
        eager_context().abort_collective_ops(code, f"tf_scalecom: {self._name} {message}")


def _kinds(calls):
    """Which different collectives the calls of workers are of."""
    return {call.rpartition(_NUMBER)[0] for call in calls.values() if call}


def _full_name(task):
    """TensorFlow's name of a task such as "worker 1"."""
    job, _, index = task.partition(" ")
    return f"/job:{job}/task:{index}"


def _fault(task):
    """What is wrong with the process of a task; None if it answers."""
    name = _full_name(task).replace("/task", "/replica:0/task")
    try:
        eager_context().check_collective_ops_peer_health(name, int(_ANSWER_SECONDS * 1000))
    except tf.errors.DeadlineExceededError:
        return _SILENT
    except tf.errors.UnavailableError:
        return "has ended: nothing answers there"
    except tf.errors.FailedPreconditionError:
        return "has ended: another process answers there"
    return None
