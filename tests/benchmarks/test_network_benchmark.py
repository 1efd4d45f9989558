"""The network benchmark measures what it says, and leaves nothing behind however it ends."""

import csv
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICK = [sys.executable, str(ROOT / "benchmarks" / "network"), "--quick", "--results"]
SECONDS = 300


def namespaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith("scalecom-bench-")]


def can_make_namespaces():
    """Whether this process may; root in a container often may not."""
    name = f"scalecom-probe-{os.getpid()}"  # each process of `pytest -n` asks
    try:
        subprocess.run(["ip", "netns", "add", name], capture_output=True, check=True)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


needs_namespaces = pytest.mark.skipif(
    not can_make_namespaces(), reason="needs the right to make network namespaces (root)"
)


@needs_namespaces
@pytest.mark.multi_worker
@pytest.mark.slow
def test_quick_run_after_a_killed_one(tmp_path):
    with subprocess.Popen([*QUICK, tmp_path / "killed"]) as killed:
        wait_for_workers(tmp_path / "killed")
        killed.kill()
    assert namespaces()  # what the next run finds

    subprocess.run([*QUICK, tmp_path], check=True, timeout=SECONDS)
    assert not namespaces()
    with (tmp_path / "cells.csv").open() as file:
        rows = {(row["rate"], row["arm"]): row for row in csv.DictReader(file)}
    assert len(rows) == 6
    for (rate, arm), row in rows.items():
        if arm != "TF compute only":
            assert float(row["payload_mb"]) == pytest.approx(float(row["formula_mb"]), rel=0.1)
            if rate == "100mbit":  # no faster than the link
                assert float(row["ms"]) > 8 * float(row["payload_mb"]) / 100 * 1e3
    assert (tmp_path / "step_time.png").stat().st_size > 0


@needs_namespaces
@pytest.mark.multi_worker
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, "of a worker"])
@pytest.mark.slow
def test_a_run_that_ends_early_leaves_nothing(tmp_path, end):
    with subprocess.Popen([*QUICK, tmp_path], stderr=subprocess.PIPE, text=True) as run:
        wait_for_workers(tmp_path)
        assert namespaces()
        if end == "of a worker":
            children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children")
            while len(pids := children.read_text().split()) < 2:  # its log is there before it is
                time.sleep(0.1)
            os.kill(int(pids[1]), signal.SIGKILL)
        else:
            run.send_signal(end)
        _, errors = run.communicate(timeout=30)
        assert run.returncode != 0
    assert not namespaces()
    if end == "of a worker":
        assert "Expected tf worker 1 to answer" in errors


def wait_for_workers(results):
    deadline = time.monotonic() + 60
    while len(list(results.rglob("tf-*.log"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_without_root_it_says_what_it_needs(tmp_path):
    nobody = ["unshare", "--user"] if os.geteuid() == 0 else []
    refused = subprocess.run(
        [*nobody, *QUICK, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 1
    assert "Expected root" in refused.stderr
    assert "sudo" in refused.stderr
