"""A process that has imported what workers need, and of which each worker is a copy.

To import TensorFlow, Keras and this package takes a worker 5 s, to be copied a moment. The template
has run nothing of TensorFlow, which so far has one thread and may be forked. Its copies become
children of the test process itself, as if that had started them. What differs from processes that
start by themselves: strings have the same hashes in all workers.
"""

import atexit
import ctypes
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import worker_main

from tf_scalecom.launch.local_cluster import LocalCluster, LocalWorker

# Of prctl (Linux).
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_LARGEST_MESSAGE, _MOST_DESCRIPTORS = 1 << 16, 4
# For a template to import all, and for a copy to be handed over.
_START_SECONDS, _HANDOVER_SECONDS = 180.0, 10.0


class WorkerTemplate:
    """The template of a test process, which starts it with the first worker.

    Args:
        env: environment variables of all workers, over those of this process.
    """

    def __init__(self, env: Mapping[str, str]):
        self._env = env
        self._process: subprocess.Popen | None = None
        self._one_request = threading.Lock()

    def start(
        self, command: Sequence[str], env: Mapping[str, str], log_path: Path, fds: Sequence[int]
    ) -> int:
        """Starts a worker; returns its process id. Threads may call it at the same time.

        Args:
            command: a Python script and its arguments.
            env: its environment variables.
            log_path: file to which its output is appended.
            fds: file descriptors that it inherits; their numbers follow the arguments.
        """
        # What this process can import the workers can, the tests' own modules above all.
        message = pickle.dumps((list(command), dict(env), sys.path, str(log_path)))
        with self._one_request:
            if self._process is None or self._process.poll() is not None:
                self._start_template()
            # A worker's own parent ends at once: it then is a child of whoever above asks for such.
            # Not for longer, or this process would keep whatever its tests leave behind.
            _prctl(_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._requests, [message], fds)
                return int(self._requests.recv(32))
            finally:
                _prctl(_SET_CHILD_SUBREAPER, 0)

    def _start_template(self):
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-u", __file__, str(theirs.fileno()), str(os.getpid())],
            env={**os.environ, **self._env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._requests.settimeout(_START_SECONDS)
        atexit.register(self._end_template, self._requests, self._process)

    @staticmethod
    def _end_template(requests, process):
        requests.close()
        process.wait()


class CopiedCluster(LocalCluster):
    """A `LocalCluster` of copies of a template; see there for the other arguments.

    Args:
        template: of what the workers are copies.
        commands: one for each worker, a Python script and its arguments. The numbers of the file
            descriptors that it inherits follow them.
    """

    def __init__(self, template: WorkerTemplate, commands: Sequence[Sequence[str]], **arguments):
        self._template = template
        super().__init__(commands, **arguments)

    def _start(self, index, command, env, log_path, fds):
        with log_path.open("ab") as log:
            log_start = log.tell()
        pid = self._template.start(command, env, log_path, fds)
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
    worker_main.prepare()
    with worker_main.without_onednn():
        import keras  # noqa: F401
        import tensorflow  # noqa: F401

    import tf_scalecom.callbacks
    import tf_scalecom.strategy  # noqa: F401

    worker_main.forget_origins()
    worker_main.collect_rarely()
    while True:
        message, fds, _, _ = socket.recv_fds(requests, _LARGEST_MESSAGE, _MOST_DESCRIPTORS)
        if not message:
            return
        reading, writing = os.pipe()
        parent = os.fork()
        if not parent:
            worker = os.fork()
            if worker:
                os.write(writing, str(worker).encode())
                os._exit(0)
            for descriptor in requests.detach(), reading, writing:
                os.close(descriptor)
            command, *rest = pickle.loads(message)
            _become(test_process, *rest)
            sys.argv = [*command, *map(str, fds)]
            sys.path.insert(0, str(Path(command[0]).parent))
            runpy.run_path(command[0], run_name="__main__")
            return
        os.waitpid(parent, 0)
        requests.send(os.read(reading, 32))
        for descriptor in reading, writing, *fds:
            os.close(descriptor)


def _become(test_process, env, path, log_path):
    """Makes this copy a worker of its own, which ends with the test process."""
    os.setsid()
    deadline = time.monotonic() + _HANDOVER_SECONDS
    while os.getppid() != test_process:
        if time.monotonic() > deadline:
            sys.exit("Expected to be handed over to the test process; it has ended.")
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
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
