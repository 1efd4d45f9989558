"""What all tests share: logical CPUs, clusters of worker processes, the native core, order."""

import fcntl
import gc
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

# Before TensorFlow is imported. Tests marked gpu: CUDA_VISIBLE_DEVICES=0 pytest -m gpu
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
from worker_cluster import WorkerClusters
from worker_main import (
    collect_rarely,
    end_iterators_at_once,
    forget_origins,
    rewrite_graphs,
    split_cpu,
    without_onednn,
)


def pytest_configure(config: pytest.Config) -> None:
    """Set TensorFlow up, before any test module can make it initialise its devices."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started with `&`: children would too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None) is None:  # it does not only hand tests out
        # Until the test modules are imported: there is much to look at and nothing to collect.
        gc.disable()
        with without_onednn():
            split_cpu(4)
        end_iterators_at_once()
        forget_origins()
        rewrite_graphs(False)


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[WorkerClusters]:
    """`cluster(n)` is a `WorkerCluster` of n workers, kept for the session of this process."""
    log_dir = tmp_path_factory.mktemp("workers")
    clusters = WorkerClusters(log_dir, pytestconfig.getini("filterwarnings"))
    yield clusters
    clusters.close()


@pytest.fixture(scope="session")
def build_native(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a target of custom_ops/Makefile, outside the source tree; returns the folder.

    All processes of `pytest -n` have one folder and build in it in turn, each object once.
    """
    if shutil.which("g++") is None or shutil.which("make") is None:
        pytest.skip("needs g++ and make to build the native core")
    source = Path(__file__).resolve().parent.parent / "custom_ops"
    session = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent  # of all processes, each of which has a folder there
    folder = session / "native_core"
    folder.mkdir(exist_ok=True)

    def make(target: str, **variables) -> Path:
        settings = [f"{name}={value}" for name, value in variables.items()]
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = subprocess.run(
                ["make", "-s", "-j2", "-C", str(source), f"BUILD={folder}", target, *settings],
                capture_output=True,
                text=True,
                timeout=900,
            )
        assert process.returncode == 0, process.stdout + process.stderr
        return folder

    return make


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what uses worker clusters; of what `-m` leaves, files with many long tests come first.

    So no process of `pytest -n` begins a long file at the end.
    """
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("multi_worker")
    yield
    long_tests: Counter[Path] = Counter()
    for item in items:
        for name, weight in ("multi_worker", 1), ("slow", 10):
            if item.get_closest_marker(name):
                long_tests[item.path] += weight
    items.sort(key=lambda item: -long_tests[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Have `make test-quick` start one cluster, not one in each process."""
    if "quick" in config.option.markexpr:
        from quick_schedule import OneCluster

        return OneCluster(config, log)
    return None


def pytest_collection_finish() -> None:
    """Leave TensorFlow, Keras and the test modules out of each later collection of garbage."""
    collect_rarely()
