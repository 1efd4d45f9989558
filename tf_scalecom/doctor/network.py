"""The doctors of a cluster, one per worker, who call each other at the addresses of TF_CONFIG.

A call is one TCP connection. The caller says, in one line of JSON, who it is and what it has. The
one called answers the same about itself or, where the call goes on as a stream of zeros for two
seconds, how many came in what time. Where training already runs, TensorFlow's own server takes the
connection and speaks HTTP/2, and a worker that waits for others hangs up. Who says anything else is
a stranger.

The stream goes to the next worker and comes from the one before, on all workers at once, which is
how the ring all-reduce of a training step loads the network.
"""

import contextlib
import dataclasses
import json
import math
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tf_scalecom.base.terminal import printable, shortened
from tf_scalecom.workers import cluster as cluster_lib
from tf_scalecom.workers.cluster import Cluster

_POLL_SECONDS = 0.2
_CALL_SECONDS = 5.0
_STREAM_SECONDS = 2.0
_CHUNK_BYTES = 1 << 20
_LINE_BYTES = 1 << 16
_CALLS_AT_ONCE = 256
_NAME = "tf_scalecom doctor"
# A frame's head: three bytes of its length, which differs; its type, of settings; flags; stream 0.
_HTTP2 = b"\0\0\0\x04\0\0\0\0\0"
_HTTP2_BYTES = len(_HTTP2)
# Facts that are names and values, and how many there may be: as many as workers.
_TABLES = ("versions", "workers")
_MOST_VALUES = 1024


@dataclasses.dataclass
class Peer:
    """What is known of another worker.

    Attributes:
        address: where TF_CONFIG has it.
        reached: whether something took a connection there.
        answered: whether that has answered or hung up, as the doctor or not; one that is busy may
            take its time.
        error: why it has not, in words; or why what did is neither the doctor of this worker nor
            its training.
        facts: what its doctor says it has; None without one.
        came: whether its doctor has called here.
    """

    address: str
    reached: bool = False
    answered: bool = False
    error: str | None = None
    facts: dict | None = None
    came: bool = False


class Doctors:
    """This worker's part in the calls.

    Args:
        cluster: the cluster; it has peers.
        facts: what this worker has, as plain values; the others are told.
        streams: whether to stream to the next worker, too, which has to do so as well. The others
            are told, as "--bandwidth".

    Attributes:
        facts: all that the others are told.
        peers: name -> what is known of another worker.
        next: name of the worker to stream to.
        stream_error: why no stream came to its end there, in words.
    """

    def __init__(self, cluster: Cluster, facts: dict, streams: bool = False):
        self.facts = {**facts, "--bandwidth": streams}
        self.peers = {name: Peer(address) for name, address in cluster.peers.items()}
        names = list(cluster.workers)
        rank = names.index(cluster.name)
        self.next = names[(rank + 1) % len(names)]
        self._before = names[rank - 1]
        self.stream_error: str | None = None
        self._cluster = cluster
        self._streamed = threading.Event()  # to here, whole or not

    def meet(self, timeout: float) -> float | None:
        """Calls all peers, again and again, until all have answered and called, or for a time.

        Args:
            timeout: seconds to wait for the others, who may start later.

        Returns:
            Bytes per second of the stream, as the one at its end counted; None without.

        Raises:
            RuntimeError: This worker's own port is taken.
        """
        with cluster_lib.answering(self._cluster, self._answer_in_thread):
            deadline = time.monotonic() + timeout
            while True:
                missing = [name for name, peer in self.peers.items() if not peer.answered]
                with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:  # each may take its time in vain
                    list(pool.map(self._greet, missing))
                if self._all_met() or time.monotonic() >= deadline:
                    break
                time.sleep(_POLL_SECONDS)
            rate = self._stream() if self._streams_with(self.next) else None
            if self._streams_with(self._before):  # may still be at it
                self._streamed.wait(_STREAM_SECONDS + _CALL_SECONDS)
            return rate

    def _all_met(self):
        """Whether nobody is left to call, and no doctor that could call here has yet to."""
        return all(
            peer.answered and (peer.came or peer.facts is None) for peer in self.peers.values()
        )

    def _greet(self, name):
        peer = self.peers[name]
        try:
            connection = cluster_lib.connect(peer.address)
        except OSError as error:
            peer.error = cluster_lib.in_words(error)
            return
        peer.reached = True
        with connection:
            try:
                _send(connection, self._call())
                line = _receive(connection)
            except TimeoutError:
                peer.error = "a connection, but no word on it: what listens there hangs or is busy"
                return
            except OSError:  # hung up
                line = b""
        answer = _call_of(line)
        peer.answered, peer.error = True, None
        if answer is None:
            if line and not _is_of_training(line):
                peer.error = "an answer that is no worker's: another program listens there"
        elif answer[_NAME] == name:
            peer.facts = answer["facts"]
        else:
            peer.error = f"{answer[_NAME]} answers there: its TF_CONFIG is another one"

    def _call(self, stream=False):
        return {_NAME: self._cluster.name, "facts": self.facts, "stream": stream}

    def _streams_with(self, name):
        facts = self.peers[name].facts
        return facts is not None and facts["--bandwidth"] and self.facts["--bandwidth"]

    def _stream(self):
        chunk = bytes(_CHUNK_BYTES)
        try:
            address = self.peers[self.next].address
            with cluster_lib.connect(address, _CALL_SECONDS) as connection:
                _send(connection, self._call(stream=True))
                end = time.monotonic() + _STREAM_SECONDS
                while time.monotonic() < end:
                    connection.sendall(chunk)
                connection.shutdown(socket.SHUT_WR)
                counted = _parsed(_receive(connection))
        except OSError as error:
            self.stream_error = cluster_lib.in_words(error)
            return None
        rate = _rate(counted)
        if rate is None:
            self.stream_error = "no count of what came in"
        return rate

    def _answer_in_thread(self, connection):
        threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection):
        with contextlib.suppress(OSError), connection:
            call = _call_of(_receive(connection))
            connection.settimeout(_CALL_SECONDS)
            if call is None:
                return
            if call["stream"]:
                try:
                    _send(connection, _count(connection))
                finally:
                    self._streamed.set()
                return
            _send(connection, self._call())
            if call[_NAME] in self.peers:
                self.peers[call[_NAME]].came = True


def _send(connection, message):
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection) -> bytes:
    """A line, or what there is of one when it ends or is no line of words.

    Raises:
        TimeoutError: it is not there in the time of a call.
    """
    line, end = b"", time.monotonic() + _CALL_SECONDS
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES:
        left = end - time.monotonic()
        if left <= 0:  # to a socket 0 is no limit
            raise TimeoutError
        connection.settimeout(left)
        byte = connection.recv(1)  # no more: a stream may follow
        line += byte
        if not byte or (line[:1] == _HTTP2[:1] and len(line) == _HTTP2_BYTES):
            break
    return line


def _is_of_training(line):
    """Whether it begins as TensorFlow's server does: with HTTP/2's frame of settings."""
    return len(line) >= _HTTP2_BYTES and line[:1] == _HTTP2[:1] and line[3:9] == _HTTP2[3:]


def _parsed(line):
    """JSON, each of its strings a line that a terminal shows; None for anything else."""
    try:
        return _in_lines(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _call_of(line) -> dict | None:
    """A doctor's call or answer; None for anything else."""
    call = _parsed(line)
    if not isinstance(call, dict) or not isinstance(call.get(_NAME), str):
        return None
    facts = call.get("facts")
    if not isinstance(call.get("stream"), bool) or not isinstance(facts, dict):
        return None
    if not isinstance(facts.get("--bandwidth"), bool):
        return None
    if not all(_is_table(facts.get(key)) for key in _TABLES):
        return None
    return {**call, "facts": {key: facts[key] for key in ("--bandwidth", *_TABLES)}}


def _is_table(value):
    return (
        isinstance(value, dict)
        and len(value) <= _MOST_VALUES
        and all(isinstance(v, str) for v in value.values())
    )


def _in_lines(value):
    if isinstance(value, str):
        return shortened(printable(value))
    if isinstance(value, dict):
        return {_in_lines(k): _in_lines(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_in_lines(v) for v in value]
    return value


def _rate(counted) -> float | None:
    """Bytes per second, of what came in in what time; None if it does not say so."""
    try:
        rate = counted["bytes"] / counted["seconds"]
    except (TypeError, LookupError, ArithmeticError):
        return None
    return rate if isinstance(rate, float) and 0 < rate < math.inf else None


def _count(connection):
    """Receives a stream to its end."""
    buffer = bytearray(_CHUNK_BYTES)
    received, start = 0, time.monotonic()
    while size := connection.recv_into(buffer):
        received += size
    return {"bytes": received, "seconds": time.monotonic() - start}
