"""A process that has imported what workers need, and of which each worker is a copy.

To import TensorFlow, Keras and this package takes a worker 5 s, to be copied a moment. The template
has run nothing of TensorFlow, which so far has one thread and may be forked. Its copies become
children of the test process itself, as if that had started them. What differs from processes that
start by themselves: strings have the same hashes in all workers.
"""

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from tf_scalecom.launch.local_cluster import LocalCluster, LocalWorker

# Of prctl (Linux).
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_LARGEST_MESSAGE = 1 << 16


class WorkerTemplate:
    """The template of a test process, which starts it with the first worker.

    Args:
        env: environment variables of all workers, over those of this process.
    """

    def __init__(self, env: Mapping[str, str]):
        self._env = env
        self._process: subprocess.Popen | None = None

    def start(self, env: Mapping[str, str], log_path: Path, control: int) -> int:
        """Starts a worker; returns its process id.

        Args:
            env: its environment variables.
            log_path: file to which its output is appended.
            control: file descriptor of its end of the connection.
        """
        if self._process is None or self._process.poll() is not None:
            self._start_template()
        # What this process can import the workers can, the tests' own modules above all.
        message = pickle.dumps((dict(env), sys.path, str(log_path)))
        socket.send_fds(self._requests, [message], [control])
        return int(self._requests.recv(32))

    def _start_template(self):
        # A worker's own parent ends at once: it then is a child of whoever above asks for such.
        _prctl(_SET_CHILD_SUBREAPER, 1)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-u", __file__, str(theirs.fileno()), str(os.getpid())],
            env={**os.environ, **self._env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()


class CopiedCluster(LocalCluster):
    """A `LocalCluster` of copies of a template; see there for the other arguments.

    Args:
        template: of what the workers are copies.
        controls: for each worker the file descriptor of its connection.
    """

    def __init__(self, template: WorkerTemplate, controls: Sequence[int], **arguments):
        self._template = template
        super().__init__([[str(fd)] for fd in controls], **arguments)

    def _start(self, index, command, env, log_path, fds):
        with log_path.open("ab") as log:
            log_start = log.tell()
        pid = self._template.start(env, log_path, int(command[0]))
        return LocalWorker(index, _Child(pid), log_path, log_start)


class _Child:
    """What `LocalWorker` asks of a `subprocess.Popen`."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def serve(requests: socket.socket, test_process: int) -> None:
    """Copy this process at each request, until the test process ends."""
    import worker_main

    worker_main.prepare()
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import tf_scalecom.callbacks
    import tf_scalecom.strategy  # noqa: F401

    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_MESSAGE, 1)
        if not message:
            return
        (control,) = descriptors
        reading, writing = os.pipe()
        parent = os.fork()
        if not parent:
            worker = os.fork()
            if worker:
                os.write(writing, str(worker).encode())
                os._exit(0)
            requests.close()
            os.close(writing)
            _become(test_process, *pickle.loads(message))
            with Connection(control) as connection, contextlib.suppress(EOFError):
                worker_main.main(connection)
            os._exit(0)
        os.waitpid(parent, 0)
        requests.send(os.read(reading, 32))
        for descriptor in reading, writing, control:
            os.close(descriptor)


def _become(test_process, env, path, log_path):
    """Makes this copy a worker of its own, which ends with the test process."""
    os.setsid()
    while os.getppid() != test_process:
        time.sleep(0.001)
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in 1, 2:
        os.dup2(log, stream)
    os.environ.update(env)
    sys.path[:] = path


def _prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as test_process_requests:
        serve(test_process_requests, int(sys.argv[2]))
