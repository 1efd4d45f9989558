"""Connections of the workers' meeting that stay open until TensorFlow has started.

One that ends without a word tells that the process at its other end has.
"""

import contextlib
import select
import socket

# What is said on a line once both have said who they are, a byte each.
_STAYS, _STARTED, _ASK, _ANSWER = b"+", b".", b"?", b"!"


class Lines:
    """The open connections of this worker to others, of which each has one or two.

    Attributes:
        answered: who has answered since it was asked.
        met: those to whom a line has ever been open.
    """

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.met: set[str] = set()
        self._names: dict[socket.socket, str] = {}
        # Whose other end stays open as long as its process is on its way.
        self._sure: set[socket.socket] = set()
        self._closed = False

    def take_called(self, name: str, connection: socket.socket) -> None:
        """Keeps a connection that this worker has made, and that the other keeps already."""
        connection.sendall(_STAYS)
        self._sure.add(connection)
        self.take_answered(name, connection)

    def take_answered(self, name: str, connection: socket.socket) -> None:
        """Keeps a connection that another has made, and may give up until it says that it stays."""
        self._names[connection] = name
        self.met.add(name)
        if self._closed:
            self.close()

    def names(self) -> set[str]:
        """Those to whom a line is open."""
        return set(list(self._names.values()))

    def hear(self, seconds: float) -> set[str]:
        """Listens for a time at most; returns those of whom the last line has ended without a word.

        Their processes have ended, or have given up.
        """
        lines = {line.fileno(): (line, name) for line, name in list(self._names.items())}
        poll = select.poll()
        for number in lines:
            poll.register(number, select.POLLIN)
        ended = set()
        for number, _ in poll.poll(1000 * seconds):
            line, name = lines[number]
            try:
                words = line.recv(16)
            except OSError:
                words = b""
            if _STAYS in words:
                self._sure.add(line)
            if _ASK in words:
                self._send(line, _ANSWER)
            if _ANSWER in words:
                self.answered.add(name)
            if not words and line in self._sure:
                ended.add(name)
            if not words or _STARTED in words:
                del self._names[line]
                line.close()
        return ended - self.names()

    def say_started(self) -> None:
        """Tells the others that this worker needs them no more."""
        self._send_all(_STARTED)

    def ask(self) -> None:
        """Asks the others for a sign of life."""
        self.answered.clear()
        self._send_all(_ASK)

    def close(self) -> None:
        """Closes all, and those that come yet."""
        self._closed = True
        for line in list(self._names):
            line.close()
            self._names.pop(line, None)

    def _send_all(self, word):
        for line in list(self._names):
            self._send(line, word)

    def _send(self, line, word):
        with contextlib.suppress(OSError):
            line.send(word)
