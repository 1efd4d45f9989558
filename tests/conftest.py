"""What all tests share: four logical CPUs in this process, and the clusters of worker processes."""

import os
from collections.abc import Iterator

# Before TensorFlow is imported. Tests marked gpu: CUDA_VISIBLE_DEVICES=0 pytest -m gpu
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses worker clusters, so that `-m "not multi_worker"` leaves it out."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("multi_worker")
