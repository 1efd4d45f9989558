"""A group of worker processes on this machine: start with TF_CONFIG, watch, end without leftovers.

The launcher and the tests' worker clusters are both built on this. Nothing here imports TensorFlow.
"""

import contextlib
import errno
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from tf_scalecom.launch import die_with_parent, end_orphans

HOST = "127.0.0.1"
_POLL_SECONDS = 0.02
# After SIGKILL only an uninterruptible system call can keep a process; do not wait for it for ever.
_REAP_SECONDS = 10.0
# What a worker writes when another process listens on its port: TensorFlow's server
# (grpc_server_lib.cc) and this package's check before it (cluster.py).
_PORT_TAKEN = re.compile(r"Could not start gRPC server|to be free, but it cannot be bound")


def reserve_ports(count: int) -> list[socket.socket]:
    """Bind `count` different free TCP ports and keep them bound.

    While a returned socket is open the kernel gives its port to nobody who asks for a free one, yet
    TensorFlow's server can still listen on it: both sides set SO_REUSEADDR and this one never
    listens. What remains is a program that listens on this very number with SO_REUSEADDR.
    """
    sockets = []
    for _ in range(count):
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))  # every interface, as TensorFlow's server does
        sockets.append(reserved)
    return sockets


def says_port_taken(output: str) -> bool:
    """Whether a failed worker's output says that another process listens on its port."""
    return _PORT_TAKEN.search(output) is not None


def _name(signum):
    with contextlib.suppress(ValueError):
        return signal.Signals(signum).name
    return f"SIGRTMIN+{signum - signal.SIGRTMIN}"  # real-time signals, which have no other


class LocalWorker:
    """One worker process, the leader of its own session, with its output in a log file."""

    def __init__(self, index: int, process: subprocess.Popen, log_path: Path, log_start: int):
        self.index = index
        self.log_path = log_path
        self.log_start = log_start
        self._process = process

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the worker's process group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code (negative: the signal that ended it), or None while the worker runs."""
        if self._process.returncode is None:
            # The exit is seen before it is collected: until then the id is still the worker's, and
            # children that it left behind can be ended without hitting a stranger's group.
            exited = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if exited is not None:
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
        return self._process.returncode

    def wait(self, timeout: float) -> int | None:
        """Wait for the worker's end, `timeout` seconds at most; returns what `poll` returns."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return code

    def send_signal(self, signum: int) -> None:
        """Signal the worker and its children; does nothing once it has ended."""
        if self.poll() is None:
            os.killpg(self.pid, signum)

    def open_log(self) -> BinaryIO:
        """The log, where this worker's part begins; an empty one if somebody has taken it away."""
        try:
            log = self.log_path.open("rb")
        except OSError:  # as where a file stands in the folder's place
            return io.BytesIO()
        log.seek(self.log_start)
        return log

    def output(self, most: int | None = None) -> bytes:
        """What this worker has written so far, or that many bytes at its end."""
        with self.open_log() as log:
            if most is not None:
                log.seek(max(self.log_start, log.seek(0, os.SEEK_END) - most))
            return log.read()

    def was_killed(self) -> bool:
        """Whether a signal has ended the worker."""
        code = self.poll()
        return code is not None and code < 0

    def describe_end(self) -> str:
        """How the worker ended, in words."""
        code = self.poll()
        if code is None:
            return "still running"
        if code < 0:
            return f"ended by signal {-code} ({_name(-code)})"
        return f"ended with exit code {code}"


class LocalCluster:
    """Worker processes that know each other through TF_CONFIG, on loopback addresses.

    As a context manager it kills on exit whatever still runs. If this process is itself killed, the
    kernel kills the workers (Linux), and another process their children. The former is tied to the
    thread which creates the cluster: it has to live as long as the cluster.

    Args:
        commands: one command per worker, each a program with its arguments.
        log_dir: created if needed; worker i appends its output to `worker-i.log` there.
        env: environment variables over those of this process.
        pass_fds: for each worker the file descriptors that it inherits; none by default.

    Example:
        with LocalCluster([[sys.executable, "train.py"]] * 2, log_dir="logs") as cluster:
            exit_codes = cluster.wait(timeout=600)
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        log_dir: str | os.PathLike,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[Sequence[int]] | None = None,
    ):
        log_dir = Path(log_dir)
        log_dir.mkdir(parents=True, exist_ok=True)
        self._reserved = reserve_ports(len(commands))
        self.addresses = [f"{HOST}:{s.getsockname()[1]}" for s in self._reserved]
        self.workers: list[LocalWorker] = []
        self._undertaker = subprocess.Popen(
            [sys.executable, "-I", "-S", end_orphans.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        try:
            for index, command in enumerate(commands):
                worker_env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
                worker_env["TF_CONFIG"] = self._tf_config(index)
                log_path = log_dir / f"worker-{index}.log"
                fds = pass_fds[index] if pass_fds else ()
                self.workers.append(self._start(index, command, worker_env, log_path, fds))
                self._tell_undertaker(self.workers[-1].pid)
        except BaseException:
            self.kill()
            raise

    def _start(
        self,
        index: int,
        command: Sequence[str],
        env: dict[str, str],
        log_path: Path,
        fds: Sequence[int],
    ) -> LocalWorker:
        # -I -S: the guard needs neither the user's environment nor site-packages.
        guard = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
        if log_path.exists() and not log_path.is_file():  # a device may have no end, or no reader
            raise FileExistsError(errno.EEXIST, f"{log_path} is no ordinary file")
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [*guard, *command],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Out of the terminal's foreground group, so that Ctrl-C reaches workers once,
                # through whoever runs the cluster, and one killpg reaches a worker's children.
                start_new_session=True,
                pass_fds=tuple(fds),
            )
            return LocalWorker(index, process, log_path, log_start=log.tell())

    def _tf_config(self, index: int) -> str:
        task = {"type": "worker", "index": index}
        return json.dumps({"cluster": {"worker": self.addresses}, "task": task})

    def _tell_undertaker(self, group):
        stream = self._undertaker.stdin
        if stream is not None and not stream.closed:
            with contextlib.suppress(BrokenPipeError):  # killed by somebody, which harms nobody
                print(group, file=stream, flush=True)

    def poll(self) -> list[int | None]:
        """Each worker's exit code, None for those that run."""
        return [worker.poll() for worker in self.workers]

    def wait(self, timeout: float) -> list[int | None]:
        """Wait until all have ended, `timeout` seconds at most; returns what `poll` returns."""
        deadline = time.monotonic() + timeout
        return [worker.wait(deadline - time.monotonic()) for worker in self.workers]

    def send_signal(self, signum: int) -> None:
        """Signal every worker that runs, with its children."""
        for worker in self.workers:
            worker.send_signal(signum)

    def kill(self) -> None:
        """End every worker by SIGKILL and free the ports. TensorFlow catches SIGTERM."""
        self.send_signal(signal.SIGKILL)
        self.wait(_REAP_SECONDS)
        self._tell_undertaker(0)
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._undertaker.communicate(timeout=_REAP_SECONDS)
        for reserved in self._reserved:
            reserved.close()

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *exc_info) -> None:
        self.kill()
