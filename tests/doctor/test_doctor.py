"""`python -m tf_scalecom doctor`: what it reports, finds fault with, and ends with."""

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import keras
import pytest
import tensorflow as tf

import tf_scalecom as sc
from tf_scalecom.__main__ import main
from tf_scalecom.doctor import network
from tf_scalecom.doctor.network import Doctors
from tf_scalecom.launch.local_cluster import reserve_ports
from tf_scalecom.workers import cluster as cluster_lib
from tf_scalecom.workers.cluster import Cluster

VERSIONS = {
    "tf_scalecom": sc.__version__, "tensorflow": tf.__version__, "keras": keras.__version__,
}  # fmt: skip


@pytest.fixture
def addresses():
    """Two addresses at which nothing listens yet."""
    reserved = reserve_ports(2)
    yield [f"127.0.0.1:{port.getsockname()[1]}" for port in reserved]
    for port in reserved:
        port.close()


def tf_config(addresses, index=0, **other_jobs):
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": addresses, **other_jobs}, "task": task})


@pytest.fixture
def doctor(capsys, monkeypatch):
    """Runs the command in this process: `doctor(TF_CONFIG, options...)` is (code, report)."""

    def run(config, *options):
        monkeypatch.setenv("TF_CONFIG", config)
        code = main(["doctor", "--json", *options])
        return code, json.loads(capsys.readouterr().out)

    return run


class Peer:
    """Worker 1's doctor, in another thread of this process."""

    def __init__(self, addresses, index=1, calls=None, versions=VERSIONS, stream=False):
        self.workers = {f"worker {i}": address for i, address in enumerate(addresses)}
        cluster = Cluster({"worker": tuple(calls or addresses)}, "worker", index)
        facts = {"versions": versions, "workers": self.workers}
        self.doctors = Doctors(cluster, facts, stream)

    def __enter__(self):
        self._pool = ThreadPoolExecutor(1)
        self.rate = self._pool.submit(self.doctors.meet, 60)
        return self

    def __exit__(self, *_):
        for peer in self.doctors.peers.values():
            peer.answered = peer.came = True  # it need not wait for its time to be up
        self._pool.shutdown()


# --- The machine ---------------------------------------------------------------------------------


def test_alone_there_is_no_problem(doctor):
    code, report = doctor("")
    assert code == 0 and report["problems"] == []
    assert {name: report["versions"][name] for name in VERSIONS} == VERSIONS
    assert report["kernels"]["backend"] == sc.ops.backend()[0].name
    assert report["kernels"]["reason"] == sc.ops.backend()[1]
    assert report["compilers"].keys() == {"c++", "nvcc"}
    assert report["gpus"] == []
    assert report["tensorflow_build"]["cuda"] == tf.sysconfig.get_build_info().get("cuda_version")
    assert report["cluster"] is report["peers"] is report["bytes_per_second"] is None


def test_the_same_as_text(capsys, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert f"tensorflow {tf.__version__}" in text and sc.ops.backend()[1] in text
    assert text.splitlines()[-1].split(maxsplit=1) == [
        "TF_CONFIG", "not set: this process trains alone"
    ]  # fmt: skip


def test_proxies_are_said_by_name_and_are_no_problem(doctor, capsys, monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    assert doctor("")[1]["proxies"] == []
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy.example:3128")
    code, report = doctor("")
    assert code == 0 and report["proxies"] == ["https_proxy"]
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "\nproxies     https_proxy: workers go around them\n" in said and "secret" not in said


def test_kernels_that_are_asked_for_and_missing_are_a_problem(doctor, monkeypatch):
    sc.ops.backend.cache_clear()
    monkeypatch.setenv("TF_SCALECOM_BACKEND", "fast")
    code, report = doctor("")
    assert code == 1 and report["kernels"] is None
    assert "Expected TF_SCALECOM_BACKEND to be native, xla or auto" in report["problems"][0]


def test_compilers_are_those_that_would_build(doctor, monkeypatch, tmp_path):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho nvcc: NVIDIA\necho release 99\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    _, report = doctor("")
    assert report["compilers"] == {"c++": None, "nvcc": f"{nvcc}: release 99"}


# --- The cluster ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("{'cluster'}", "Expected TF_CONFIG to be JSON"),
        (tf_config(["host:1", "host:1"]), "a different address for each task"),
        (tf_config(["host:1"], index=1), "the index of one of 1 tasks"),
        (tf_config(["a:1"], ps=["b:1"]), "Parameter servers are not supported"),
    ],
)
def test_what_training_refuses_in_tf_config_is_a_problem(doctor, config, expected):
    code, report = doctor(config)
    (problem,) = report["problems"]
    assert code == 1 and expected in problem and report["cluster"] is None
    with pytest.raises(ValueError, match="Expected") as refused:
        sc.MultiWorkerMirroredStrategy()
    assert str(refused.value) == problem


def test_a_peer_that_does_not_listen_is_named_in_time(doctor, addresses):
    code, report = doctor(tf_config(addresses), "--timeout", "0.5")
    (problem,) = report["problems"]
    assert code == 1
    assert f"Expected worker 1 at {addresses[1]} to answer within 0.5 s" in problem
    assert "connection refused" in problem
    assert report["cluster"]["task"] == "worker 0"
    assert not report["peers"]["worker 1"]["reached"]


def test_training_that_already_runs_there_counts_as_reached(doctor, addresses):
    there = tf.distribute.Server({"worker": addresses}, job_name="worker", task_index=1)
    assert there.target.endswith(addresses[1].rpartition(":")[2])
    code, report = doctor(tf_config(addresses))
    assert code == 0 and report["problems"] == []
    assert report["peers"]["worker 1"]["reached"] and not report["peers"]["worker 1"]["doctor"]
    code, report = doctor(tf_config(addresses), "--bandwidth")
    (problem,) = report["problems"]
    assert code == 1 and "an answer that is no doctor's" in problem


def test_a_peer_may_take_its_time_to_answer(doctor, addresses):
    with Peer(addresses) as peer:
        answer = peer.doctors._answer

        def answer_late(connection):
            time.sleep(1.2 * cluster_lib._CONNECT_SECONDS)
            answer(connection)

        peer.doctors._answer = answer_late
        code, report = doctor(tf_config(addresses), "--timeout", "1")  # one call
    assert code == 0 and report["peers"]["worker 1"]["doctor"]


def test_a_peer_that_takes_a_connection_and_says_nothing_is_called_again(
    doctor, addresses, monkeypatch
):
    monkeypatch.setattr(network, "_CALL_SECONDS", 0.3)
    silent = socket.create_server(("", int(addresses[1].rpartition(":")[2])))
    code, report = doctor(tf_config(addresses), "--timeout", "0.1")
    (problem,) = report["problems"]
    assert code == 1 and "received: a connection, but no word on it" in problem
    found = report["peers"]["worker 1"]
    assert found["reached"] and not found["answered"] and not found["doctor"]

    def start():
        time.sleep(0.5)
        silent.close()
        return Peer(addresses).__enter__()

    with ThreadPoolExecutor(1) as pool:
        peer = pool.submit(start)
        code, report = doctor(tf_config(addresses))
        peer.result().__exit__()
    assert code == 0 and report["peers"]["worker 1"]["doctor"]


def test_an_own_port_that_is_taken_is_a_problem(doctor, addresses):
    here = Cluster({"worker": tuple(addresses)}, "worker", 0)
    with cluster_lib.answering(here, socket.socket.close):
        code, report = doctor(tf_config(addresses))
    assert code == 1 and "to be free, but it cannot be bound" in report["problems"][0]


def test_an_own_address_that_is_none_is_a_problem(doctor, addresses):
    others = [f"256.1.1.1:{addresses[0].partition(':')[2]}", addresses[1]]
    with socket.create_server(("", int(addresses[1].partition(":")[2]))):
        code, report = doctor(tf_config(others), "--timeout", "1")
    assert code == 1
    assert f"received {others[0]}: the host's name has no address (" in report["problems"][0]


def test_doctors_meet_whoever_comes_first(doctor, addresses):
    with Peer(addresses) as peer:
        code, report = doctor(tf_config(addresses))
        assert code == 0 and report["peers"]["worker 1"]["doctor"]
    assert peer.doctors.peers["worker 0"].facts["versions"] == VERSIONS


def test_workers_that_differ_are_a_problem(doctor, addresses):
    with Peer(addresses, versions=VERSIONS | {"keras": "3.14.0"}):
        code, report = doctor(tf_config(addresses))
    (problem,) = report["problems"]
    assert code == 1
    assert f"versions.keras: '{keras.__version__}' (worker 0), '3.14.0' (worker 1)" in problem


def test_another_workers_answer_is_a_problem(doctor, addresses):
    third = [*addresses, "127.0.0.1:1"]
    # What TF_CONFIG here has as worker 1 takes itself for worker 2.
    with Peer([third[0], third[2], third[1]], index=2):
        code, report = doctor(tf_config(addresses))
    assert code == 1 and "worker 2 answers there" in report["problems"][0]


def test_a_connection_that_goes_one_way_only_is_a_problem(doctor, addresses):
    with Peer(addresses, calls=["127.0.0.1:1", addresses[1]]):
        code, report = doctor(tf_config(addresses), "--timeout", "1")
    (problem,) = report["problems"]
    assert code == 1 and f"Check that {addresses[0]} is reachable from there" in problem


@pytest.mark.slow
def test_two_processes_measure_and_print_json_alone(addresses):
    command = [sys.executable, "-m", "tf_scalecom", "doctor", "--json", "--bandwidth"]
    env = {**os.environ, "TF_CONFIG": tf_config(addresses), "TF_CPP_MIN_LOG_LEVEL": "0"}
    with Peer(addresses, stream=True) as peer:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr  # TensorFlow has logged
    report = json.loads(done.stdout)
    rates = report["bytes_per_second"], peer.rate.result()
    assert all(1e6 < rate < 1e12 for rate in rates), rates


@pytest.mark.parametrize("config", ["", tf_config(["localhost:1"])])
def test_bandwidth_on_one_worker_alone_is_no_problem(capsys, monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    assert main(["doctor", "--bandwidth"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1].split(maxsplit=1) == [
        "bandwidth", "not measured: TF_CONFIG names no other worker"
    ]  # fmt: skip


def test_bandwidth_that_not_all_are_to_measure_is_one_problem(doctor, addresses):
    with Peer(addresses):
        code, report = doctor(tf_config(addresses), "--bandwidth")
    (problem,) = report["problems"]
    assert code == 1 and "--bandwidth: True (worker 0), False (worker 1)" in problem


@pytest.mark.parametrize(
    "count",
    [
        {}, [], None, {"bytes": 1}, {"bytes": "1", "seconds": 1}, {"bytes": 1, "seconds": 0},
        {"bytes": -1, "seconds": 1}, {"bytes": 10**400, "seconds": 1},
        {"bytes": 1, "seconds": 1e-320},
        {"bytes": float("nan"), "seconds": 1}, {"bytes": 1e308, "seconds": 1e-9},
    ],
)  # fmt: skip
def test_a_stream_that_is_counted_wrongly_is_one_problem(doctor, addresses, monkeypatch, count):
    monkeypatch.setattr(network, "_STREAM_SECONDS", 0.0)
    monkeypatch.setattr(network, "_count", lambda connection: count)
    with Peer(addresses, stream=True):
        code, report = doctor(tf_config(addresses), "--bandwidth")
    (problem,) = report["problems"]
    assert code == 1 and "to take a stream; received: no count of what came in" in problem


def test_a_stream_that_breaks_off_is_one_problem(doctor, addresses, monkeypatch):
    def break_off(connection):
        raise ConnectionResetError

    monkeypatch.setattr(network, "_count", break_off)
    with Peer(addresses, stream=True):
        code, report = doctor(tf_config(addresses), "--bandwidth")
    (problem,) = report["problems"]
    assert code == 1 and f"Expected worker 1 at {addresses[1]} to take a stream" in problem


def test_a_timeout_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--timeout", "soon"])
    assert ended.value.code == 2 and "expected a number of seconds" in capsys.readouterr().err
