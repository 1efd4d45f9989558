"""The first words of workers to each other: who each is, and what it takes the cluster to be.

Workers whose TF_CONFIG differ would wait in TensorFlow for tasks that do not exist, and end in an
error that tells nobody why. So each connection of the meeting carries a line of JSON both ways. A
worker that finds another's cluster to differ from its own fails, and says where; so does the other.
It stays a little to tell those who ask later.

Whatever does not answer so (TensorFlow's server of a worker that is ahead, the doctor, an older
version of this package) has answered, and nothing is known of it. If it is none of these, that is
said.
"""

import contextlib
import ipaddress
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from tf_scalecom.base.terminal import printable
from tf_scalecom.workers.addresses import expected_instead
from tf_scalecom.workers.agreement import differences
from tf_scalecom.workers.lines import Lines

_NAME = "tf_scalecom worker"
# What a machine may call itself.
_OWN = {"localhost", "0.0.0.0", "::"}
_WORD_SECONDS = 1.0
_STAY_SECONDS = 3.0
_SHOWN = 5
_LINE_BYTES = 1 << 20
# Of who may be a worker: nothing, a line in braces, TensorFlow's server, whose HTTP/2 begins so.
_FIRST_BYTES = (b"", b"{", b"\0")


class Meeting:
    """What this worker says and hears.

    Args:
        name: this worker's task, e.g. "worker 1".
        workers: name -> address of all tasks that train together, by rank.
        place_of: gives host and port of an address, alike for all its spellings.

    Attributes:
        complaint: how another worker's cluster differs from this one's, in words; None as long as
            none does.
        has_called: name of another worker -> event that is set when it calls, and so listens.
        lines: connections to those that have said who they are, which stay open.
    """

    def __init__(
        self, name: str, workers: Mapping[str, str], place_of: Callable[[str], tuple[str, int]]
    ):
        self.complaint: str | None = None
        self.lines = Lines()
        self.has_called = {other: threading.Event() for other in workers if other != name}
        self._name = name
        self._workers = dict(workers)
        self._place_of = place_of
        self._complained_at = 0.0

    def answer(self, connection: socket.socket) -> None:
        """Answers a call, in a thread of its own."""
        threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def call(self, connection: socket.socket, name: str) -> None:
        """Calls the worker `name`, to whose address the connection is."""
        with _closed_unless_kept(connection) as keep:
            self._say(connection)
            line = _receive(connection)
            if line[:1] not in _FIRST_BYTES:
                print(
                    f"tf_scalecom: expected {name} at {self._workers[name]}; received an answer "
                    "that is no worker's: another program seems to listen there. Correct the "
                    "address in TF_CONFIG, or end that program.",
                    file=sys.stderr,
                    flush=True,
                )
            heard = _words_in(line)
            self._hear(heard, expected=name)
            if heard is not None and self.complaint is None:
                self.lines.take_called(name, connection)
                keep()

    def stay(self) -> None:
        """Gives the others the time to call and hear the complaint."""
        time.sleep(max(0.0, self._complained_at + _STAY_SECONDS - time.monotonic()))

    def _answer(self, connection):
        with _closed_unless_kept(connection) as keep:
            heard = _words_in(_receive(connection))
            if heard is not None:
                self._hear(heard)
                self._say(connection)
                if self.complaint is None:
                    self.lines.take_answered(heard[_NAME], connection)
                    keep()
                    self.has_called[heard[_NAME]].set()

    def _say(self, connection):
        words = {_NAME: self._name, "workers": self._workers, "complaint": self.complaint}
        connection.sendall(json.dumps(words).encode() + b"\n")

    def _hear(self, words, expected=None):
        if words is None or self.complaint is not None:
            return
        complaint = self._complaint_about(words, expected)
        if complaint is not None:
            self._complained_at = time.monotonic()
            self.complaint = "\n".join(map(printable, complaint.split("\n")))

    def _complaint_about(self, words, expected):
        name, workers = words[_NAME], words["workers"]
        here = f"{self._name} at {self._workers[self._name]}"
        there = f"{name} at {workers.get(name)}"
        if self._differ(workers):
            lines = differences([self._workers, workers], [here, there])[:_SHOWN]
            return "\n  ".join(
                [f"one of {len(self._workers)} and one of {len(workers)} workers:", *lines]
            )
        if expected is not None and name != expected:
            return f"{name} at {self._workers[expected]}, the address of {expected}"
        if name == self._name:
            return f"two processes that are {here}"
        return words["complaint"]

    def _differ(self, workers):
        if list(workers) != list(self._workers):
            return True
        return any(
            not self._same_place(address, workers[name]) for name, address in self._workers.items()
        )

    def _same_place(self, one, other):
        """Whether two addresses may be one; which worker answers there is compared besides."""
        (host, port), (other_host, other_port) = self._place_of(one), self._place_of(other)
        if port != other_port:
            return False
        # A worker may call itself localhost, and one machine may know a name, short or full, where
        # another knows a number.
        if not _OWN.isdisjoint({host, other_host}) or _is_number(host) != _is_number(other_host):
            return True
        if _is_number(host):
            return host == other_host
        return host.partition(".")[0] == other_host.partition(".")[0]


@contextlib.contextmanager
def _closed_unless_kept(connection: socket.socket) -> Iterator[Callable[[], object]]:
    """A connection for a few words, which is closed in the end, and when it fails; or kept."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        stack.enter_context(connection)
        connection.settimeout(_WORD_SECONDS)
        yield stack.pop_all


def _is_number(host):
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _receive(connection) -> bytes:
    """A line that may be of a worker of this package; of anything else the beginning."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES:
        received = connection.recv(4096)
        line += received
        if not received or line[:1] != b"{":
            break
    return line


def _words_in(line):
    """What a worker of this package says; None of anything else."""
    try:
        words = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return words if _are_of_a_worker(words) else None


def _are_of_a_worker(words):
    if not isinstance(words, dict) or not words.keys() >= {_NAME, "workers", "complaint"}:
        return False
    name, workers, complaint = words[_NAME], words["workers"], words["complaint"]
    return (
        isinstance(name, str)
        and isinstance(workers, dict)
        and name in workers
        and all(isinstance(a, str) and expected_instead(a) is None for a in workers.values())
        and isinstance(complaint, str | None)
    )
