"""The doctors of a cluster, one per worker, who call each other at the addresses of TF_CONFIG.

A call is one TCP connection. The caller says, in one line of JSON, who it is and what it has. The
one called answers the same about itself or, where the call goes on as a stream of zeros for two
seconds, how many came in what time. TensorFlow's own server, where training already runs, takes the
connection and does not answer so.

The stream goes to the next worker and comes from the one before, on all workers at once, which is
how the ring all-reduce of a training step loads the network.
"""

import contextlib
import dataclasses
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tf_scalecom import cluster as cluster_lib
from tf_scalecom.cluster import Cluster

_POLL_SECONDS = 0.2
_CALL_SECONDS = 5.0
_STREAM_SECONDS = 2.0
_CHUNK_BYTES = 1 << 20
_LINE_BYTES = 1 << 16
_CALLS_AT_ONCE = 32
_NAME = "tf_scalecom doctor"


@dataclasses.dataclass
class Peer:
    """What is known of another worker.

    Attributes:
        address: where TF_CONFIG has it.
        reached: whether something took a connection there.
        error: why nothing did, in words; or why what did is not the doctor of this worker.
        facts: what its doctor says it has; None without one.
        came: whether its doctor has called here.
    """

    address: str
    reached: bool = False
    error: str | None = None
    facts: dict | None = None
    came: bool = False


class Doctors:
    """This worker's part in the calls.

    Args:
        cluster: the cluster; it has peers.
        facts: what this worker has, as plain values; the others are told.
    """

    def __init__(self, cluster: Cluster, facts: dict):
        self.peers = {name: Peer(address) for name, address in cluster.peers.items()}
        self._cluster = cluster
        self._facts = facts
        self._received = threading.Event()  # a whole stream

    def meet(self, timeout: float, stream: bool) -> float | None:
        """Calls all peers, again and again, until all have answered and called, or for a time.

        Args:
            timeout: seconds to wait for the others, who may start later.
            stream: then stream to the next worker, which has to do so too.

        Returns:
            Bytes per second of the stream, as the one at its end counted; None without.

        Raises:
            RuntimeError: This worker's own port is taken.
        """
        with cluster_lib.answering(self._cluster, self._answer_in_thread):
            deadline = time.monotonic() + timeout
            while not self._all_met() and time.monotonic() < deadline:
                missing = [name for name, peer in self.peers.items() if not peer.reached]
                with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:  # each may take its time in vain
                    list(pool.map(self._greet, missing))
                time.sleep(_POLL_SECONDS)
            if not stream:
                return None
            rate = self._stream_to(self._neighbour(1))
            if self._neighbour(-1).facts is not None:  # may still be at it
                self._received.wait(_STREAM_SECONDS + _CALL_SECONDS)
            return rate

    def _all_met(self):
        """Whether nobody is left to call, and no doctor that could call here has yet to."""
        return all(
            peer.reached and (peer.came or peer.facts is None) for peer in self.peers.values()
        )

    def _greet(self, name):
        peer = self.peers[name]
        try:
            with cluster_lib.connect(peer.address) as connection:
                peer.reached, peer.error = True, None
                _send(connection, self._call())
                answer = _receive(connection)
        except OSError as error:
            if not peer.reached:
                peer.error = _in_words(error)
            return
        if not _is_call(answer):
            return
        if answer[_NAME] == name:
            peer.facts = answer["facts"]
        else:
            peer.error = f"{answer[_NAME]} answers there: its TF_CONFIG is another one"

    def _call(self, stream=False):
        return {_NAME: self._cluster.name, "facts": self._facts, "stream": stream}

    def _neighbour(self, distance):
        names = list(self._cluster.workers)
        return self.peers[names[(names.index(self._cluster.name) + distance) % len(names)]]

    def _stream_to(self, peer):
        if peer.facts is None:
            return None
        chunk = bytes(_CHUNK_BYTES)
        try:
            with cluster_lib.connect(peer.address, _CALL_SECONDS) as connection:
                _send(connection, self._call(stream=True))
                end = time.monotonic() + _STREAM_SECONDS
                while time.monotonic() < end:
                    connection.sendall(chunk)
                connection.shutdown(socket.SHUT_WR)
                counted = _receive(connection)
        except OSError as error:
            peer.error = f"the stream there broke off ({_in_words(error)})"
            return None
        return counted["bytes"] / counted["seconds"] if counted else None

    def _answer_in_thread(self, connection):
        threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection):
        with contextlib.suppress(OSError), connection:
            connection.settimeout(_CALL_SECONDS)
            call = _receive(connection)
            if not _is_call(call):
                return
            if call["stream"]:
                _send(connection, _count(connection))
                self._received.set()
                return
            _send(connection, self._call())
            if call[_NAME] in self.peers:
                self.peers[call[_NAME]].came = True


def _send(connection, message):
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection):
    """A message, one line of JSON; None for anything else."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES:
        byte = connection.recv(1)  # no more: a stream may follow
        if not byte:
            return None
        line += byte
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_call(message):
    return isinstance(message, dict) and message.keys() >= {_NAME, "facts", "stream"}


def _count(connection):
    """Receives a stream to its end."""
    buffer = bytearray(_CHUNK_BYTES)
    received, start = 0, time.monotonic()
    while size := connection.recv_into(buffer):
        received += size
    return {"bytes": received, "seconds": time.monotonic() - start}


def _in_words(error):
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, TimeoutError):
        return "no answer: the machine is down, or a firewall drops what is sent to it"
    if isinstance(error, socket.gaierror):
        return f"the host's name has no address ({error.strerror})"
    return error.strerror or str(error)
