"""Where this process stands in the cluster, checked and complete before TensorFlow starts.

TensorFlow's own start-up blocks in C++ with the interpreter locked until every worker has come:
nothing in the process can say who is missing, not even end it. So what can be wrong with TF_CONFIG
is said here, and the workers meet here first, in Python, where waiting is finite and has a voice.
"""

import contextlib
import dataclasses
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf

from tf_scalecom.base.terminal import shown
from tf_scalecom.workers.addresses import expected_instead, host_and_port, place
from tf_scalecom.workers.rendezvous import Meeting
from tf_scalecom.workers.start_watch import StartWatch

JOBS = ("chief", "worker", "evaluator")

REPORT_VARIABLE = "TF_SCALECOM_REPORT_MISSING_SECONDS"
LIMIT_VARIABLE = "TF_SCALECOM_WAIT_FOR_WORKERS_SECONDS"
_REPORT_SECONDS = 30.0
_LIMIT_SECONDS = 300.0
_POLL_SECONDS = 0.2
# Of what goes on in this process alone.
_LOOK_SECONDS = 0.02
_CONNECT_SECONDS = 2.0

_EXAMPLE = (
    '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster and this process's task in it.

    Attributes:
        jobs: job name -> addresses ("host:port"), in the order of their indices.
        task_type: this process's job.
        task_id: its index there.
    """

    jobs: Mapping[str, tuple[str, ...]]
    task_type: str
    task_id: int

    @property
    def address(self) -> str:
        """This process's own address."""
        return self.jobs[self.task_type][self.task_id]

    @property
    def name(self) -> str:
        """This process's task, e.g. "worker 1"."""
        return f"{self.task_type} {self.task_id}"

    @property
    def workers(self) -> dict[str, str]:
        """Name -> address of all tasks that train together, this one's among them, by rank."""
        if self.task_type == "evaluator":  # evaluates alone, beside the training
            return {self.name: self.address}
        return {
            f"{job} {index}": address
            for job in ("chief", "worker")
            for index, address in enumerate(self.jobs.get(job, ()))
        }

    @property
    def peers(self) -> dict[str, str]:
        """Name -> address of the other tasks that train with this one."""
        return {name: address for name, address in self.workers.items() if name != self.name}


def find_cluster(cluster_resolver=None) -> Cluster | None:
    """Reads and checks the cluster that `cluster_resolver`, by default TF_CONFIG, describes.

    Args:
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`, or None.

    Returns:
        The cluster, or None if there is none: this process trains alone.

    Raises:
        ValueError: The description is incomplete or contradicts itself.
    """
    tf_config = tf.distribute.cluster_resolver.TFConfigClusterResolver
    if cluster_resolver is None or isinstance(cluster_resolver, tf_config):
        return parse_tf_config(os.environ.get("TF_CONFIG", ""))
    if not isinstance(cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver):
        raise ValueError(
            "Expected `cluster_resolver` to be a tf.distribute.cluster_resolver.ClusterResolver, "
            f"received {cluster_resolver!r}. Without one, the strategy reads TF_CONFIG."
        )
    jobs = cluster_resolver.cluster_spec().as_dict()
    if not jobs:
        return None
    task = {"type": cluster_resolver.task_type, "index": cluster_resolver.task_id}
    return _checked(jobs, task, type(cluster_resolver).__name__)


def parse_tf_config(text: str) -> Cluster | None:
    """Reads and checks the value of TF_CONFIG; None if it is empty.

    Raises:
        ValueError: It is no JSON object, or what it says is incomplete or contradicts itself.
    """
    if not text.strip():
        return None
    try:
        config = json.loads(text, object_pairs_hook=_each_key_once)
    except (ValueError, RecursionError) as error:  # also of a number or a depth beyond all measure
        raise ValueError(
            f"Expected TF_CONFIG to be JSON, received {shown(text)} ({error}). "
            f"Write it like {_EXAMPLE}, with double quotes."
        ) from error
    if config == {}:
        return None
    if not isinstance(config, dict) or not isinstance(config.get("cluster"), dict):
        expected = "a JSON object with an object `cluster` in it"
        raise _bad_config(expected, shown(text), "TF_CONFIG")
    if not isinstance(config.get("task"), dict):
        raise _bad_config("an object `task` beside `cluster`", shown(text), "TF_CONFIG")
    return _checked(config["cluster"], config["task"], "TF_CONFIG")


def _each_key_once(pairs):
    """A JSON object; of a key that is there twice JSON would keep the second value, unsaid."""
    if len(dict(pairs)) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {shown(max(keys, key=keys.count))} is there more than once")
    return dict(pairs)


def _checked(jobs, task, source) -> Cluster:
    for job, addresses in jobs.items():
        if job == "ps":
            raise _bad_config(
                f"jobs among {', '.join(JOBS)}",
                "a job 'ps'. Parameter servers are not supported: this strategy is synchronous. "
                "Leave the job out",
                source,
            )
        if job not in JOBS:
            raise _bad_config(f"jobs among {', '.join(JOBS)}", f"a job {shown(job)}", source)
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise _bad_config(f"a list of addresses for job {job!r}", shown(addresses), source)
        for address in addresses:
            expected = expected_instead(address)
            if expected is not None:
                raise _bad_config(expected, f"{shown(address)} ({job})", source)
    if not jobs.get("chief") and not jobs.get("worker"):
        raise _bad_config("at least one address under `worker`", shown(jobs), source)
    addresses = [address for job in jobs.values() for address in job]
    spellings: dict[tuple, list[str]] = {}
    for address in addresses:
        spellings.setdefault(place(address), []).append(address)
    for same in spellings.values():
        if len(same) > 1:
            received = " and ".join(map(repr, same)) + ", which are one"
            raise _bad_config("a different address for each task", received, source)
    if len(jobs.get("chief", ())) > 1:
        raise _bad_config("one `chief`", f"{len(jobs['chief'])} chiefs", source)
    task_type, task_id = task.get("type"), task.get("index")
    if not isinstance(task_type, str) or task_type not in jobs:
        raise _bad_config(
            f"the task's type among the cluster's jobs ({', '.join(jobs)})",
            shown(task_type),
            source,
        )
    # TensorFlow reads "0" as 0 too. A bool is an int to Python, and a mistake here.
    if isinstance(task_id, str) and re.fullmatch("[0-9]{1,9}", task_id):
        task_id = int(task_id)
    if not isinstance(task_id, int) or isinstance(task_id, bool):
        raise _bad_config("an integer as the task's index", shown(task_id), source)
    if not 0 <= task_id < len(jobs[task_type]):
        raise _bad_config(
            f"the index of one of {len(jobs[task_type])} tasks of job {task_type!r}, from 0",
            str(task_id),
            source,
        )
    return Cluster({job: tuple(a) for job, a in jobs.items()}, task_type, task_id)


def _bad_config(expected, received, source) -> ValueError:
    return ValueError(
        f"Expected {expected} in {source}, received {received}. "
        f"All workers need the same `cluster` and each its own `task`, like {_EXAMPLE}."
    )


def wait_for_peers(
    cluster: Cluster, report_seconds: float | None = None, limit_seconds: float | None = None
) -> StartWatch:
    """Returns once every peer has answered at its address; meanwhile answers at its own.

    A peer that is ahead, and has handed its port to TensorFlow, answers just as well; one that is
    between the two is asked again. Peers that are here too say what cluster they are in; one that
    ends before all are here is waited for anew. All are asked at once, so that their number makes
    nobody wait.

    Args:
        cluster: the cluster, checked.
        report_seconds: when to say who is missing, on stderr. By default the environment variable
            TF_SCALECOM_REPORT_MISSING_SECONDS, or 30.
        limit_seconds: when to give up. By default TF_SCALECOM_WAIT_FOR_WORKERS_SECONDS, or 300.

    Returns:
        What watches the peers from here to the end of TensorFlow's start.

    Raises:
        RuntimeError: This worker's own port is taken.
        TimeoutError: Peers are still missing at the limit.
        ValueError: Another worker takes the cluster to be another one.
    """
    name = cluster.name
    meeting = Meeting(name, cluster.workers, place)
    watch = StartWatch(name, cluster.peers, meeting.lines)
    if not cluster.peers:
        return watch
    if report_seconds is None:
        report_seconds = _seconds_from_environment(REPORT_VARIABLE, _REPORT_SECONDS)
    if limit_seconds is None:
        limit_seconds = _seconds_from_environment(LIMIT_VARIABLE, _LIMIT_SECONDS)
    start = time.monotonic()
    with (
        _lines_closed_on_error(meeting.lines),
        answering(cluster, meeting.answer),
        _asked(meeting, cluster.peers) as (missing, ask),
    ):
        reported = False
        while True:
            have_all_answered = not missing  # before what they have said is looked at
            if not have_all_answered:
                for peer in meeting.lines.hear(0.0) - missing.keys():
                    ask(peer)
            if meeting.complaint is not None:
                meeting.stay()
                raise ValueError(
                    "Expected all workers to be told of the same cluster (`TF_CONFIG`), received "
                    f"{meeting.complaint}\nGive all workers the same `cluster`, in the same order, "
                    "and each a `task` of its own."
                )
            if have_all_answered:
                return watch
            waited = time.monotonic() - start
            who = ", ".join(
                f"{n} ({', '.join(filter(None, [cluster.peers[n], why]))})"
                for n, why in list(missing.items())
                if why is not None
            )
            who = who or ", ".join(missing)  # of whom all speak, however long
            if who and waited > limit_seconds:
                raise TimeoutError(
                    f"Expected all workers of the cluster within {limit_seconds:g} s, "
                    f"{name} waited in vain for {who}. Start them, check their logs, and that "
                    f"these addresses are reachable from here; {LIMIT_VARIABLE} sets the limit."
                )
            if who and waited > report_seconds and not reported:
                print(
                    f"tf_scalecom: {name} has waited {waited:.0f} s for {who}, "
                    f"and will give up after {limit_seconds:g} s ({LIMIT_VARIABLE}).",
                    file=sys.stderr,
                    flush=True,
                )
                reported = True
            time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def _lines_closed_on_error(lines):
    try:
        yield
    except BaseException:
        lines.close()
        raise


def _seconds_from_environment(variable: str, default: float) -> float:
    """A positive number of seconds from an environment variable.

    Raises:
        ValueError: It is set to something else.
    """
    text = os.environ.get(variable)
    if not text:
        return default
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise ValueError(
        f"Expected the environment variable {variable} to be a positive number of seconds, "
        f"received {text!r}. Unset it for the default of {default:g} s."
    )


@contextlib.contextmanager
def answering(cluster: Cluster, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Accepts connections at this worker's address until the block ends.

    Args:
        cluster: the cluster.
        answer: is given each connection, one after the other, and closes it.

    Raises:
        RuntimeError: This worker's port is taken.
    """
    _, port = host_and_port(cluster.address)
    both = socket.has_dualstack_ipv6()
    try:
        # TensorFlow takes this port next: connections that linger must not stand in its way, which
        # `create_server` sees to.
        listener = socket.create_server(
            ("", port),
            family=socket.AF_INET6 if both else socket.AF_INET,
            dualstack_ipv6=both,
            backlog=128,
        )
    except OSError as error:
        raise RuntimeError(
            f"Expected port {port} of {cluster.name} ({cluster.address}) to be free, but it cannot "
            f"be bound ({error.strerror}). End the process that holds it (often a worker of an "
            "earlier run), or choose another port in TF_CONFIG."
        ) from error

    ended = threading.Event()

    def accept():
        while not ended.is_set():
            try:
                connection = listener.accept()[0]
            except OSError:  # closed below; or there are no files left for now
                ended.wait(_POLL_SECONDS)
            else:
                answer(connection)

    thread = threading.Thread(target=accept, name="scalecom-rendezvous", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # close() alone would leave a thread in accept(), and with it the port, alive.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def connect(address: str, seconds: float = _CONNECT_SECONDS) -> socket.socket:
    """A connection to a task's address.

    Args:
        address: "host:port".
        seconds: the longest that this, or any later call on the connection, waits.

    Raises:
        OSError: There is none to be had.
    """
    return socket.create_connection(host_and_port(address), timeout=seconds)


def in_words(error: OSError) -> str:
    """Why there is none."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, TimeoutError):
        return "no answer: the machine is down, or a firewall drops what is sent to it"
    if isinstance(error, socket.gaierror):
        return f"the host's name has no address ({error.strerror})"
    return error.strerror or str(error)


@contextlib.contextmanager
def _asked(meeting, peers) -> Iterator[tuple[dict[str, str | None], Callable[[str], None]]]:
    """Calls peers, each in a thread of its own and again and again, until the block ends.

    Gives those that have not answered, by name, and why in words, if that is known; None while one
    speaks. It shrinks meanwhile. Besides a function that has a peer asked anew.
    """
    missing: dict[str, str | None] = {}
    ended = threading.Event()

    def ask(name):
        missing[name] = ""
        threading.Thread(target=call, args=[name, peers[name]], daemon=True).start()

    def call(name, address):
        while not ended.is_set():
            try:
                connection = connect(address)
            except OSError as error:
                missing[name] = in_words(error)
                meeting.has_called[name].wait(_POLL_SECONDS)
                meeting.has_called[name].clear()
                continue
            missing[name] = None
            meeting.call(connection, name)
            del missing[name]
            return

    for name in peers:
        ask(name)
    try:
        yield missing, ask
    finally:
        ended.set()
