"""A proxy in the environment never stands between the workers of a cluster."""

import json
import os
import subprocess
import sys
import urllib.request

import pytest
from worker_cluster import WORKER_ENV

from tf_scalecom.launch.local_cluster import reserve_ports
from tf_scalecom.workers import proxies

DEAD = "http://user:secret@127.0.0.1:9"


@pytest.fixture
def environment(monkeypatch):
    """Sets these variables, and unsets all others that have to do with proxies."""

    def set_variables(**variables):
        for name in list(os.environ):
            if name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "environ", os.environ.copy())  # what is set later, goes with it

    return set_variables


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "a,::1,10.0.0.1,my-host.example"),
        ({"no_proxy": "example.org, .internal"},
         "example.org,.internal,a,::1,10.0.0.1,my-host.example"),
        # It takes the other's place, as gRPC reads them.
        ({"no_proxy": "example.org", "no_grpc_proxy": "a,b"}, "a,b,::1,10.0.0.1,my-host.example"),
        ({"no_proxy": "example.org", "no_grpc_proxy": ""}, "a,::1,10.0.0.1,my-host.example"),
    ],
)  # fmt: skip
def test_exceptions_are_the_users_and_the_clusters_hosts(environment, variables, expected):
    environment(http_proxy=DEAD, **variables)
    for _ in range(2):  # another strategy, or a restart, adds nothing
        proxies.go_around(["a:1", "a:2", "[::1]:3", "10.0.0.1:4", "my-host.example:5"])
    assert os.environ["no_grpc_proxy"] == expected  # noqa: SIM112 (gRPC reads no upper case)
    # HTTP clients go on as they did.
    assert os.environ.get("no_proxy") == variables.get("no_proxy")
    assert urllib.request.getproxies()["http"] == DEAD
    assert not urllib.request.proxy_bypass("10.0.0.1")


def test_names_of_what_is_set_and_no_passwords(environment):
    environment(HTTPS_PROXY=DEAD, http_proxy=DEAD, grpc_proxy="", no_proxy="a")
    assert proxies.in_environment() == ["HTTPS_PROXY", "http_proxy"]


WORKER = """
import os
import keras, numpy as np, tf_scalecom as sc
keras.utils.set_random_seed(0)
strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x, y = np.ones((4, 4)), np.ones((4, 1))
if strategy.cluster_resolver.task_type == "evaluator":
    print("evaluated", model.evaluate(x, y, verbose=0) > 0)
model.fit(x, y, verbose=0)
print("trained")
"""


@pytest.mark.multi_worker
@pytest.mark.slow
def test_workers_behind_a_dead_proxy_train_and_an_evaluator_does_not():
    reserved = reserve_ports(3)
    first, second, evaluator = (f"localhost:{port.getsockname()[1]}" for port in reserved)
    cluster = {"worker": [first, second], "evaluator": [evaluator]}
    proxy = {name: DEAD for name in ("grpc_proxy", "http_proxy", "https_proxy")}
    unset = {name for name in os.environ if name.lower().startswith("no_")}
    processes = []
    try:
        for job, index in (("worker", 0), ("worker", 1), ("evaluator", 0)):
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            environment = {k: v for k, v in os.environ.items() if k not in unset}
            environment |= {**WORKER_ENV, **proxy, "TF_CONFIG": json.dumps(config)}
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", WORKER], env=environment, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
        *workers, evaluated = (process.communicate(timeout=120)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
        for port in reserved:
            port.close()
    assert all(said.endswith("trained\n") for said in workers), workers
    assert "evaluated True" in evaluated
    assert "expected a task that trains with others, received a call on evaluator 0" in evaluated
