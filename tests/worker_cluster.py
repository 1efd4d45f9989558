"""Clusters of worker processes that live for the whole test session and run many test functions.

    def losses(strategy, steps):                # in a tests module, at its top level
        ...
        return [float(x) for x in history]

    def test_workers_agree(cluster):
        first, second = cluster(2).run(losses, steps=3, timeout=90)
        assert first == second

Starting TensorFlow on every worker costs seconds, a call on a running cluster milliseconds.
"""

import pickle
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from worker_template import CopiedCluster, WorkerTemplate

from tf_scalecom.launch.local_cluster import LocalWorker, says_port_taken
from tf_scalecom.launch.worker_output import last_lines

START_SECONDS = 180.0
_PORT_ATTEMPTS = 3
# After a first error: how long the other workers, in lock-step, may take to report theirs.
_SETTLE_SECONDS = 2.0
# For faulthandler to write the stacks of a worker that is out of time.
_STACKS_SECONDS = 0.5
_STALLED_SECONDS = 60
_LOG_LINES = 40

# Small thread pools, as several processes share the machine; no GPU, so that a test means the same
# everywhere; no start-up chatter of TensorFlow.
WORKER_ENV = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "OMP_NUM_THREADS": "1",
}

_TEMPLATE = WorkerTemplate(WORKER_ENV)


def package_strategy():
    """Build the strategy that the tests are about."""
    import tf_scalecom

    return tf_scalecom.MultiWorkerMirroredStrategy()


class WorkerFailure(AssertionError):
    """A call on a cluster failed: a worker raised, died or did not answer in time."""


class WorkerCluster:
    """`num_workers` processes that run functions in lock-step; started by the first call.

    Args:
        num_workers: how many.
        logical_cpus: as how many devices each worker sees its CPU.
        build_strategy: a function of a module that workers can import. Each calls it once.
        log_dir: directory of the workers' logs.
        warning_filters: lines of pytest's `filterwarnings` setting, in force on the workers.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        logical_cpus: int = 1,
        build_strategy: Callable = package_strategy,
        log_dir: Path,
        warning_filters: Sequence[str] = (),
    ):
        self.num_workers = num_workers
        self._logical_cpus = logical_cpus
        self._build_strategy = build_strategy
        self._log_dir = log_dir
        self._warning_filters = list(warning_filters)
        self._processes: CopiedCluster | None = None
        self._controls: list[Connection] = []

    def run(self, function: Callable, *args, timeout: float = 60.0, **kwargs) -> list:
        """Call `function(strategy, *args, **kwargs)` on every worker; returns the values.

        `function` and the classes of its arguments must be importable by name. Before each call
        Keras is reset: session cleared, policy float32, random seed 0.

        Raises:
            WorkerFailure: with the traceback of the worker that failed first and the logs of all.
                The next call finds a new cluster.
        """
        __tracebackhide__ = True  # the worker's traceback is what matters
        if self._processes is None or any(code is not None for code in self._processes.poll()):
            self._start()
        return self._call(function, args, kwargs, timeout)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers; empty while there are none."""
        return [worker.pid for worker in self._processes.workers] if self._processes else []

    def close(self) -> None:
        """Kill the workers. A later call starts new ones."""
        for control in self._controls:
            control.close()
        self._controls = []
        if self._processes is not None:
            self._processes.kill()
            self._processes = None

    def _start(self) -> None:
        __tracebackhide__ = True
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._start_processes()
            try:
                self._call(self._build_strategy, (), {}, START_SECONDS)
                return
            except WorkerFailure as failure:
                if attempt == _PORT_ATTEMPTS or not says_port_taken(str(failure)):
                    raise

    def _start_processes(self) -> None:
        self.close()
        pairs = [socket.socketpair() for _ in range(self.num_workers)]
        theirs = [pair[1] for pair in pairs]
        self._controls = [_connection(pair[0]) for pair in pairs]
        main = str(Path(__file__).with_name("worker_main.py"))
        self._processes = CopiedCluster(
            _TEMPLATE,
            [[main]] * self.num_workers,
            log_dir=self._log_dir,
            pass_fds=[[end.fileno()] for end in theirs],
        )
        for end in theirs:
            end.close()  # so that a worker's end is seen as the end of its connection
        for control in self._controls:
            control.send_bytes(pickle.dumps((self._logical_cpus, self._warning_filters)))

    def _call(self, function: Callable, args: tuple, kwargs: dict, timeout: float) -> list:
        __tracebackhide__ = True
        call = _Call(self._processes.workers, self._controls, f"{function.__qualname__}()")
        message = pickle.dumps((function, args, kwargs))
        try:
            values = call.make(message, timeout)
        except BaseException:  # a Ctrl-C leaves calls unanswered, too
            self.close()
            raise
        return values


class _Call:
    """One function call on all workers, from the request to the values or the failure."""

    def __init__(self, workers: Sequence[LocalWorker], controls: Sequence[Connection], name: str):
        self._workers = workers
        self._controls = controls
        self._name = name
        self._log_starts = [worker.log_path.stat().st_size for worker in workers]
        self._values: dict[int, object] = {}
        self._errors: dict[int, str] = {}  # in the order in which they came

    def make(self, message: bytes, timeout: float) -> list:
        """Send the request, return the values of all workers; see `WorkerCluster.run`."""
        __tracebackhide__ = True
        for index, control in enumerate(self._controls):
            try:
                control.send_bytes(message)
            except OSError as error:  # the worker has died, or does not read
                self._errors[index] = f"could not be reached: {error}"
        self._collect(timeout)
        if self._errors:
            self._collect(_SETTLE_SECONDS, despite_errors=True)
        waiting = self._waiting()
        if not waiting and not self._errors:
            return [self._values[index] for index in range(len(self._workers))]
        for index in waiting:
            self._workers[index].send_signal(signal.SIGUSR1)
        time.sleep(_STACKS_SECONDS)
        raise WorkerFailure(self._failure(timeout))

    def _waiting(self) -> list[int]:
        answered = self._values.keys() | self._errors.keys()
        return [i for i in range(len(self._workers)) if i not in answered]

    def _collect(self, seconds: float, despite_errors: bool = False) -> None:
        deadline = time.monotonic() + seconds
        while (waiting := self._waiting()) and (despite_errors or not self._errors):
            controls = {self._controls[index]: index for index in waiting}
            ready = wait(list(controls), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                return
            for control in ready:
                self._receive(controls[control])

    def _receive(self, index: int) -> None:
        try:
            kind, content = pickle.loads(self._controls[index].recv_bytes())
        except (EOFError, OSError):
            self._workers[index].wait(_SETTLE_SECONDS)
            kind, content = "error", self._workers[index].describe_end()
        (self._values if kind == "value" else self._errors)[index] = content

    def _failure(self, timeout: float) -> str:
        if self._errors:
            first = next(iter(self._errors))
            parts = [f"{self._name} failed on worker {first} of {len(self._workers)}:"]
            parts.append(self._errors[first].rstrip())
        else:
            late = ", ".join(str(index) for index in self._waiting())
            parts = [
                f"{self._name} was to answer within {timeout:g} s; no answer from worker {late}. "
                "Their stacks are in the logs below; a slow test can pass a longer timeout=."
            ]
        for index, worker in enumerate(self._workers):
            parts.append(
                f"--- worker {index}: {self._state(index)}; since the call {worker.log_path}:"
            )
            with worker.log_path.open("rb") as log:
                log.seek(self._log_starts[index])
                parts += last_lines(log.read(), _LOG_LINES)
        return "\n".join(parts)

    def _state(self, index: int) -> str:
        if index in self._values:
            return "returned"
        if index in self._errors:
            return "failed: " + self._errors[index].rstrip().rsplit("\n", 1)[-1][:100]
        return "did not answer"


class WorkerClusters:
    """The session's clusters, one for each distinct set of arguments, started when first used."""

    def __init__(self, log_dir: Path, warning_filters: Sequence[str]):
        self._log_dir = log_dir
        self._warning_filters = warning_filters
        self._clusters: dict[tuple, WorkerCluster] = {}

    def __call__(
        self,
        num_workers: int,
        *,
        logical_cpus: int = 1,
        build_strategy: Callable = package_strategy,
    ) -> WorkerCluster:
        """The cluster of `num_workers` workers; see `WorkerCluster`."""
        key = (num_workers, logical_cpus, build_strategy)
        if key not in self._clusters:
            self._clusters[key] = WorkerCluster(
                num_workers,
                logical_cpus=logical_cpus,
                build_strategy=build_strategy,
                log_dir=self._log_dir / f"cluster-{len(self._clusters)}",
                warning_filters=self._warning_filters,
            )
        return self._clusters[key]

    def close(self) -> None:
        """Kill all workers."""
        for cluster in self._clusters.values():
            cluster.close()


def start_scripts(
    script: Path, num_workers: int, *args: str, log_dir: Path, env: Mapping[str, str] | None = None
) -> CopiedCluster:
    """Start `script` on new workers that may die, hang or fail as the test likes.

    Use it as a context manager, which ends what still runs.
    """
    return CopiedCluster(_TEMPLATE, [[str(script), *args]] * num_workers, log_dir=log_dir, env=env)


def _connection(end: socket.socket) -> Connection:
    # A stopped worker must not block this process for ever in the middle of a message.
    limit = struct.pack("ll", _STALLED_SECONDS, 0)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    return Connection(end.detach())
