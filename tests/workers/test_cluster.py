"""What is wrong with a cluster's description is said at once, and who is missing in finite time."""

import contextlib
import io
import json
import re
import resource
import socket
import threading
import time

import pytest
import tensorflow as tf

from tf_scalecom.workers import cluster, rendezvous
from tf_scalecom.workers.addresses import place
from tf_scalecom.workers.cluster import Cluster, find_cluster, parse_tf_config, wait_for_peers
from tf_scalecom.workers.lines import Lines


def config(cluster, task_type="worker", index=0):
    return json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})


TWO = {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{'cluster': {}}", "to be JSON"),
        ("[1]", "object `cluster`"),
        ('{"task": {"type": "worker", "index": 0}}', "object `cluster`"),
        ('{"cluster": {"worker": ["a:1"]}}', "object `task`"),
        (config({}), "at least one address"),
        (config({"worker": []}), "at least one address"),
        (config({"worker": "a:1"}), "a list of addresses"),
        (config({"trainer": ["a:1"]}, "trainer"), "received a job 'trainer'"),
        (
            config(TWO, "chief"),
            "the task's type among the cluster's jobs .* received 'chief'",
        ),
        (config(TWO, ["worker"]), r"the task's type among .* received \['worker'\]"),
        (config({**TWO, "ps": ["c:1"]}, "ps"), "Parameter servers are not supported"),
        (config({**TWO, "ps": ["c:1"]}), "received a job 'ps'.* Leave the job out"),
        (config({"chief": ["a:1", "b:1"]}, "chief"), "one `chief`"),
        (config(TWO, index=2), "one of 2 tasks .* received 2"),
        (config(TWO, index=-1), "received -1"),
        (config(TWO, index=None), "an integer as the task's index .* received None"),
        (config(TWO, index=True), "an integer as the task's index .* received True"),
        (config(TWO, index=0.5), "an integer as the task's index"),
        (config({"worker": ["a:1", "a:1"]}), "different address for each task .* 'a:1' and 'a:1'"),
        (config({"worker": ["localhost:1", "127.0.0.1:1"]}), "'localhost:1' and '127.0.0.1:1'"),
        (config({"chief": ["[::1]:1"], "worker": ["LocalHost.:01"]}), "a different address"),
        (config({"worker": ["Host.example.:1", "host.Example:1"]}), "a different address"),
        (config({"worker": ["[fe80::1]:1", "[fe80:0::1]:1"]}), "a different address"),
        (config({"worker": ["http://a:1", "b:1"]}), "neither http:// .* received 'http://a:1'"),
        (config({"worker": ["a:1/", "b:1"]}), "host:port"),
        (config({"worker": ["a:\u0661", "b:1"]}), "a port from 1 to 65535"),
        (config({"worker": ["a: 1", "b:1"]}), "host:port"),
        (config({"worker": ["fe80::1:1", "b:1"]}), r"IPv6 in \[\]"),
        (config(TWO, index="\u0661"), "an integer as the task's index"),
        (config({"chief": ["a:1"], "worker": ["a:1"]}), "different address for each task"),
        (config({"worker": ["a", "b:1"]}), "host:port .* received 'a'"),
        (config({"worker": ["a:http"]}), "host:port"),
        (config({"worker": ["a..b:1", "c:1"]}), r"1 to 63 between dots .* 'a\.\.b:1'"),
        (config({"worker": ["a..:1", "c:1"]}), "1 to 63 between dots"),
        (config({"worker": [f"{64 * 'a'}:1", "c:1"]}), "1 to 63 between dots"),
        (config({"worker": [f"{130 * 'a.'}a:1", "c:1"]}), "253 in all"),
        (config({"worker": ["a,b:1", "c:1"]}), "letters, digits, - and _, .* received 'a,b:1'"),
        (config({"worker": ["a\0b:1", "c:1"]}), "letters, digits, - and _"),
        (config({"worker": ["$(id):1", "c:1"]}), "letters, digits, - and _"),
        (config({"worker": ["user@a:1", "c:1"]}), "host:port"),
        (
            config({"worker": ["b\u00fccher.example:1", "c:1"]}),
            r"ASCII.* \(xn--bcher-kva.example\)",
        ),
        (config({"worker": ["a\u200b:1", "c:1"]}), "hosts' names in ASCII"),
        (config({"worker": ["\ud800:1", "c:1"]}), "hosts' names in ASCII"),
        (config({"worker": ["[127.0.0.1]:1", "c:1"]}), r"nothing but IPv6 addresses in \[\]"),
        (config({"worker": ["[localhost]:1", "c:1"]}), r"nothing but IPv6 addresses in \[\]"),
        (config({"worker": ["[::1:1", "c:1"]}), "host:port"),
        (config({"worker": ["[::ffff:10.0.0.1]:1", "10.0.0.1:1"]}), "a different address"),
        (config({"worker": ["0.0.0.0:1", "127.0.0.2:1"]}), "a different address"),
        (config(TWO).replace("{", '{"worker": ["z:1"], ', 2), r"the key 'worker' is there more"),
        (config({"worker": 900 * [["a:1"]]}), r"a list of addresses .* characters\)"),
        (config({5000 * "a": ["a:1"]}), r"received a job 'aa.* characters\)"),
        (config(TWO, 5000 * "a"), r"received 'aa.* characters\)"),
        ("\ufeff" + config(TWO), "to be JSON"),
        ("null", "object `cluster`"),
        (config(None), "object `cluster`"),
        (config(TWO).replace('"index": 0', '"index": NaN'), "received nan"),
        (config(TWO).replace('"index": 0', '"index": 1e0'), "received 1.0"),
        (config({"evaluator": ["a:1"]}, "evaluator"), "at least one address under `worker`"),
        (config({"worker": [None, "a:1"]}), r"a list of addresses .* received \[None, 'a:1'\]"),
        (config({"worker": {"0": "a:1"}}), "a list of addresses"),
        (config({"Worker": ["a:1"]}, "Worker"), "received a job 'Worker'"),
        (config(TWO, index=5000 * "9"), r"an integer as the task's index .* \(5,002 characters\)"),
        (
            config(TWO).replace('"index": 0', f'"index": {5000 * "9"}'),
            r"to be JSON.* \(5,080 characters\)",
        ),
        ("[" * 100_000, r"to be JSON.*\[\[\.\.\. \(100,002 characters\)"),
        (config({"worker": ["a:70000"]}), "host:port"),
        (config({"worker": [":1"]}), "host:port"),
    ],
)
def test_bad_config_is_refused_with_expected_received_and_remedy(text, complaint):
    with pytest.raises(ValueError, match=f"(?s)Expected .*{complaint}") as error:
        parse_tf_config(text)
    assert "received" in str(error.value)
    assert '"index": 0}' in str(error.value), "the message shows what to write"


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_no_config_means_no_cluster(text):
    assert parse_tf_config(text) is None


def test_good_config():
    cluster = parse_tf_config(config({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, index="1"))
    assert cluster.address == "c:1"
    alike = ["my-host.example:1", "my_host:1", "[fe80::1]:1", "10.0.0.1:1", "10.0.0.1:2"]
    assert parse_tf_config(config({"worker": alike})).jobs == {"worker": tuple(alike)}
    assert cluster.peers == {"chief 0": "a:1", "worker 0": "b:1"}


def test_an_evaluator_waits_for_nobody():
    cluster = parse_tf_config(config({**TWO, "evaluator": ["c:1"]}, "evaluator"))
    assert cluster.peers == {}
    with wait_for_peers(cluster):
        pass


def test_the_strategy_reads_the_configuration_before_it_starts_anything(monkeypatch):
    import tf_scalecom

    monkeypatch.setenv("TF_CONFIG", config(TWO, index=7))
    with pytest.raises(ValueError, match="one of 2 tasks"):
        tf_scalecom.MultiWorkerMirroredStrategy()


@pytest.mark.parametrize("workers", [["127.0.0.1:1"], ["a:1", "b:1"], ["a:1", "b:1", "c:1"]])
def test_what_ran_before_the_strategy_is_said_while_nobody_waits(monkeypatch, workers):
    import tf_scalecom

    tf.constant(0)  # as in any dataset, layer, model or random number
    monkeypatch.setenv("TF_CONFIG", config({"worker": workers}))
    monkeypatch.setenv("TF_SCALECOM_WAIT_FOR_WORKERS_SECONDS", "300")
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"made before .*; received .* dataset.*Make"):
        tf_scalecom.MultiWorkerMirroredStrategy()
    assert time.monotonic() - start < 20


def test_a_resolver_is_read_and_checked():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["a:1", "b:1"]}), task_type="worker", task_id=1
    )
    assert find_cluster(resolver) == Cluster({"worker": ("a:1", "b:1")}, "worker", 1)
    resolver.task_id = 2
    with pytest.raises(ValueError, match="SimpleClusterResolver"):
        find_cluster(resolver)
    with pytest.raises(ValueError, match=r"to be a tf.distribute.cluster_resolver.ClusterResolver"):
        find_cluster("worker")


def local_cluster(num_workers, host="127.0.0.1"):
    sockets = [socket.socket() for _ in range(num_workers)]
    for taken in sockets:
        taken.bind(("127.0.0.1", 0))
    addresses = tuple(f"{host}:{taken.getsockname()[1]}" for taken in sockets)
    for taken in sockets:
        taken.close()
    return [Cluster({"worker": addresses}, "worker", i) for i in range(num_workers)]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_workers_that_come_one_after_the_other_meet(host):
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    outcomes = {}

    def meet(cluster, delay):
        time.sleep(delay)
        # What TensorFlow does next: listen at the same address, until the end.
        with wait_for_peers(cluster, limit_seconds=20):
            pass
        port = int(cluster.address.rpartition(":")[2])
        family = socket.AF_INET6 if host == "[::1]" else socket.AF_INET
        with socket.create_server(("", port), family=family):
            outcomes[cluster.task_id] = "met"
            while len(outcomes) < 3:
                time.sleep(0.01)

    threads = [
        threading.Thread(target=meet, args=(cluster, 0.7 * cluster.task_id))
        for cluster in local_cluster(3, host)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(25)
    assert outcomes == {0: "met", 1: "met", 2: "met"}


def test_a_worker_that_calls_is_called_back_at_once(monkeypatch):
    monkeypatch.setattr(cluster, "_POLL_SECONDS", 30.0)  # between two calls to one that is missing
    first, second = local_cluster(2)
    met = threading.Event()

    def meet():
        with wait_for_peers(first, limit_seconds=20):
            met.set()

    thread = threading.Thread(target=meet)
    thread.start()
    time.sleep(0.5)
    assert not met.is_set()
    with wait_for_peers(second, limit_seconds=20):
        assert met.wait(20)
    thread.join(20)


def test_missing_workers_are_named_then_given_up(capfd):
    first, second, third = local_cluster(3)
    port = int(second.address.rpartition(":")[2])
    start = time.monotonic()
    with socket.create_server(("", port)), pytest.raises(TimeoutError) as error:
        wait_for_peers(first, report_seconds=0.5, limit_seconds=1.5)
    assert time.monotonic() - start < 10
    said = capfd.readouterr().err
    refused = f"worker 2 ({third.address}, connection refused: nothing listens there)"
    assert f"waited 1 s for {refused}" in said and said.count("worker 2") == 1
    assert refused in str(error.value)
    assert "worker 1" not in str(error.value), "worker 1 has answered"


class Clock(io.StringIO):
    """Takes what is written, and the time of the first of it."""

    def __init__(self):
        super().__init__()
        self.first: float | None = None

    def write(self, text):
        self.first = self.first or time.monotonic()
        return super().write(text)


@pytest.mark.parametrize("number", [3, 31, 255])
def test_however_many_drop_what_is_sent_to_them_the_report_comes_at_its_time(number):
    """Prints when: `pytest -s -k however_many`."""
    (own,) = local_cluster(1)
    told = Clock()
    with contextlib.ExitStack() as stack:
        # Its queue is full, so that the system drops what comes from whoever connects to it.
        deaf = stack.enter_context(socket.create_server(("0.0.0.0", 0), backlog=0))
        for _ in range(2):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(deaf.getsockname())
        port = deaf.getsockname()[1]
        others = [f"127.0.{i // 250 + 1}.{i % 250 + 1}:{port}" for i in range(number)]
        cluster = Cluster({"worker": (*own.jobs["worker"], *others)}, "worker", 0)
        stack.enter_context(contextlib.redirect_stderr(told))
        start = time.monotonic()
        with pytest.raises(TimeoutError) as error:
            wait_for_peers(cluster, report_seconds=0.5, limit_seconds=2.5)
        ended = time.monotonic() - start
    told_after = told.first - start
    print(
        f"{number} that drop: told after {told_after:.2f} s (0.5), ended after {ended:.2f} s (2.5)"
    )
    assert told_after < 10 and ended < 20, "31 asked one after the other took 62 s"
    assert re.search(r"worker 0 has waited \d s for worker 1 \(", told.getvalue())
    why = "no answer: the machine is down, or a firewall drops what is sent to it"
    assert told.getvalue().count(f":{port}") == str(error.value).count(f":{port}") == number
    assert f":{port}, {why}" in str(error.value)  # of all whose first call has ended


def test_who_answers_without_coming_to_meet_is_named_if_tensorflow_cannot_start():
    """As a worker of an earlier start does, where another is started again by itself."""
    first, second = local_cluster(2)
    with socket.create_server(("", int(second.address.rpartition(":")[2]))):
        watch = wait_for_peers(first, limit_seconds=10)
        named = re.escape(f"worker 0 at /job:worker/task:1 ({second.address}) had not come to meet")
        with pytest.raises(TimeoutError, match=named), watch:
            raise tf.errors.DeadlineExceededError(None, None, "Deadline Exceeded")


def test_who_calls_while_no_file_is_left_is_answered_later():
    def answer(connection):
        with connection:
            connection.sendall(b"here")

    (own,) = local_cluster(1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with cluster.answering(own, answer), socket.socket() as caller:
        caller.settimeout(10)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 1, limits[1]))
            caller.connect(("127.0.0.1", int(own.address.rpartition(":")[2])))
            time.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caller.recv(4) == b"here"


@pytest.fixture
def two_lines():
    """Of worker 0, which has called worker 1, and of worker 1, which has answered."""
    called, answered = socket.socketpair()
    first, second = Lines(), Lines()
    second.take_answered("worker 0", answered)
    first.take_called("worker 1", called)
    yield first, second
    first.close()
    second.close()


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(("ends", "name"), [(0, "worker 0"), (1, "worker 1")])
def test_who_ends_is_lost_unless_it_has_started(two_lines, ends, name, started):
    there, here = two_lines[ends], two_lines[1 - ends]
    assert here.hear(0.1) == set() and here.names() == {name}
    if started:
        there.say_started()
    there.close()
    assert here.hear(0.1) == (set() if started else {name})
    assert here.names() == set()


def test_who_has_another_line_is_not_lost(two_lines):
    first, second = two_lines
    more, other_end = socket.socketpair()
    first.take_answered("worker 1", more)
    second.close()
    assert first.hear(0.1) == set() and first.names() == {"worker 1"}
    other_end.close()
    assert first.hear(0.1) == set(), "a caller may give up what it has not said that it keeps"


def test_who_is_asked_answers(two_lines):
    first, second = two_lines
    first.ask()
    assert first.hear(0.1) == set() and first.answered == set()
    second.hear(0.1)
    first.hear(0.1)
    assert first.answered == {"worker 1"}


def test_one_that_never_ends_its_line_is_given_up_too():
    first, second = local_cluster(2)
    port = int(second.address.rpartition(":")[2])
    over = threading.Event()

    def speak(listener):
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while not over.wait(0.2):
                connection.sendall(b"{")

    with socket.create_server(("", port)) as listener:
        speaker = threading.Thread(target=speak, args=[listener])
        speaker.start()
        with pytest.raises(TimeoutError, match=r"in vain for worker 1\."):
            wait_for_peers(first, report_seconds=9, limit_seconds=1.5)
        over.set()
        speaker.join()


def test_a_name_that_does_not_resolve_is_said_to_be_one():
    (own,) = local_cluster(1)
    cluster = Cluster({"worker": (*own.jobs["worker"], "no-such-host.invalid:1")}, "worker", 0)
    with pytest.raises(TimeoutError, match=r"the host's name has no address"):
        wait_for_peers(cluster, report_seconds=9, limit_seconds=1.5)


def outcomes_of_meeting(clusters, delay):
    """Has a worker of each cluster come, one `delay` after the other; the errors, by place."""
    errors = {}

    def meet(place, cluster):
        time.sleep(delay * place)
        try:
            with wait_for_peers(cluster, limit_seconds=8):
                pass
        except (ValueError, TimeoutError) as error:
            errors[place] = str(error)

    threads = [threading.Thread(target=meet, args=item) for item in enumerate(clusters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return errors


def task(addresses, index):
    return Cluster({"worker": tuple(addresses)}, "worker", index)


def in_another_order(a, b, c):
    return [task([a, b, c], 0), task([a, b, c], 1), task([a, c, b], 1)]


def of_another_number(a, b, c):
    return [task([a, b, c], 0), task([a, b], 1), task([a, b, c], 2)]


def first_on_both(a, b, c):
    return [task([a, b], 0), task([b, a], 0)]


def elsewhere(a, b, c):
    return [task([a, b], 0), task([a, c], 1)]


@pytest.mark.parametrize(
    ("clusters", "complaint"),
    [
        (in_another_order, r"worker 1: '\S+' \(worker \d at \S+\), '\S+' \(worker \d at"),
        (of_another_number, r"one of [23] and one of [23] workers:\n  worker 2: '?\S+'? \(w"),
        (first_on_both, r"one of 2 and one of 2 workers:\n  worker 0: '\S+' \(worker 0 at"),
        (elsewhere, r"one of 2 and one of 2 workers:\n  worker 1: '\S+' \(worker \d at"),
    ],
)
def test_workers_in_different_clusters_all_fail_at_once(clusters, complaint, monkeypatch):
    monkeypatch.setattr(rendezvous, "_STAY_SECONDS", 1.0)
    clusters = clusters(*local_cluster(3)[0].jobs["worker"])
    start = time.monotonic()
    errors = outcomes_of_meeting(clusters, delay=0.3)
    assert time.monotonic() - start < 6, errors
    assert len(errors) == len(clusters)
    for error in errors.values():
        assert re.search(complaint, error), error
        assert "Give all workers the same `cluster`" in error


def test_a_process_that_is_another_task_than_its_address_says_is_named():
    a, b = local_cluster(2)[0].jobs["worker"]
    # A name of the other's machine that leads here, as an entry in /etc/hosts may.
    workers = task([a, b], 0).workers
    words = {"workers": workers, "complaint": None}
    words["tf_scalecom worker"] = "worker 0"
    for expected, complaint in [
        (None, f"two processes that are worker 0 at {a}"),
        ("worker 1", f"worker 0 at {b}, the address of worker 1"),
    ]:
        first = rendezvous.Meeting("worker 0", workers, lambda address: (address, 0))
        first._hear(words, expected)
        assert first.complaint == complaint


@pytest.mark.parametrize(
    ("here", "there", "may_be_one"),
    [
        ("node-1:2222", "node-1.cluster.local:2222", True),
        ("node-1:2222", "10.0.0.1:2222", True),
        ("0.0.0.0:2222", "node-1:2222", True),
        ("localhost:2222", "10.0.0.1:2222", True),
        ("node-1:2222", "node-2:2222", False),
        ("node-1:2222", "node-1:2223", False),
        ("10.0.0.1:2222", "10.0.0.2:2222", False),
    ],
)
def test_a_machine_may_be_known_by_a_name_and_a_number(here, there, may_be_one):
    first = rendezvous.Meeting("worker 0", {"worker 0": here}, place)
    assert first._differ({"worker 0": there}) != may_be_one


def words(**changes):
    workers = {"worker 0": "a:1", "worker 1": "b:1"}
    said = {"tf_scalecom worker": "worker 1", "workers": workers, "complaint": None, **changes}
    return json.dumps(said).encode() + b"\n"


MALFORMED = [
    b"{}\n",
    b'{"half',
    b'{"a":' * 100_000 + b"\n",
    b'{"a":' + b"9" * 5_000 + b"}\n",
    b'{"\xff": 1}\n',
    *(words(workers=value) for value in (None, [], "ab", {}, {"worker 1": 1}, {"worker 1": "b"})),
    *(words(**{"tf_scalecom worker": name}) for name in (None, 1, [], {}, "worker 2", "\x1b[2J")),
    *(words(complaint=value) for value in (1, [], {})),
]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "says",
    [b"", b"\0\0\0 HTTP/2 settings", None, *MALFORMED],
    ids=lambda says: ascii(says)[2:99],
)
def test_whatever_else_listens_at_an_address_has_answered(says, capfd):
    first, second = local_cluster(2)
    with socket.create_server(("", int(second.address.rpartition(":")[2]))) as server:

        def answer():
            connection, _ = server.accept()
            if says is not None:
                connection.sendall(says)
                connection.close()
                return
            held.append(connection)

        held = []
        threading.Thread(target=answer, daemon=True).start()
        start = time.monotonic()
        with wait_for_peers(first, limit_seconds=5):
            pass
        assert time.monotonic() - start < 4
        for connection in held:
            connection.close()
    assert not capfd.readouterr().err


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0\r\n"])
def test_another_program_at_the_address_of_a_worker_is_said_to_be_there(says, capfd):
    first, second = local_cluster(2)
    with socket.create_server(("", int(second.address.rpartition(":")[2]))) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(says)

        threading.Thread(target=answer, daemon=True).start()
        with wait_for_peers(first, limit_seconds=5):
            pass
    assert f"expected worker 1 at {second.address}; received an answer that is no worker's" in (
        capfd.readouterr().err
    )


def test_what_another_worker_says_reaches_no_terminal_as_it_is():
    workers = {"worker 0": "a:1", "worker 1": "b:1"}
    first = rendezvous.Meeting("worker 0", workers, place)
    first._hear(json.loads(words(complaint="one\n  \x1b]0;two\x07")))
    assert first.complaint == "one\n  \\x1b]0;two\\x07"


def test_a_taken_port_is_named():
    first, _ = local_cluster(2)
    port = int(first.address.rpartition(":")[2])
    with (
        socket.create_server(("", port)),
        pytest.raises(RuntimeError, match=f"Expected port {port} of worker 0 .* to be free"),
    ):
        wait_for_peers(first)


def test_limits_from_the_environment_are_checked(monkeypatch):
    monkeypatch.setenv("TF_SCALECOM_WAIT_FOR_WORKERS_SECONDS", "soon")
    with pytest.raises(
        ValueError, match=r"TF_SCALECOM_WAIT_FOR_WORKERS_SECONDS .* received 'soon'"
    ):
        wait_for_peers(local_cluster(2)[0])
