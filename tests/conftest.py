"""What all tests share: logical CPUs, clusters of worker processes, idle jobs, the native core."""

import gc
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

# Before TensorFlow is imported. Tests marked gpu: CUDA_VISIBLE_DEVICES=0 pytest -m gpu
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
from idle_jobs import IdleJobs, uses_job
from worker_cluster import WorkerClusters
from worker_main import split_cpu

# Before any test module can make TensorFlow initialise its devices.
split_cpu(4)


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[WorkerClusters]:
    """`cluster(n)` is a `WorkerCluster` of n workers, kept for the whole session."""
    log_dir = tmp_path_factory.mktemp("workers")
    clusters = WorkerClusters(log_dir, pytestconfig.getini("filterwarnings"))
    yield clusters
    clusters.close()


@pytest.fixture(scope="session", autouse=True)
def idle_jobs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[IdleJobs]:
    """Work in the background from the start of the session; see `idle_jobs.idle_job`."""
    with IdleJobs(request.session.items, tmp_path_factory.mktemp) as jobs:
        yield jobs


@pytest.fixture(scope="session")
def build_native(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a target of custom_ops/Makefile, outside the source tree; returns the folder."""
    if shutil.which("g++") is None or shutil.which("make") is None:
        pytest.skip("needs g++ and make to build the native core")
    source = Path(__file__).resolve().parent.parent / "custom_ops"
    folder = tmp_path_factory.mktemp("native_core")

    def make(target: str, **variables) -> Path:
        settings = [f"{name}={value}" for name, value in variables.items()]
        process = subprocess.run(
            ["make", "-s", "-j2", "-C", str(source), f"BUILD={folder}", target, *settings],
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return folder

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses worker clusters, so that `-m "not multi_worker"` leaves it out; order."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("multi_worker")
    items.sort(key=uses_job)


def pytest_collection_finish() -> None:
    """Leave TensorFlow, Keras and the test modules out of each later collection of garbage."""
    gc.freeze()
