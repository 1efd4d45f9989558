"""The scripts of examples/, as they are: on one worker, on two, and as commands."""

import contextlib
import io
import re
import runpy
import subprocess
import sys

import pytest
from package_source import ROOT, run

FOLDER = ROOT / "examples"


def output(name):
    """What an example prints."""
    sys.path.insert(0, str(FOLDER))  # as `python examples/NAME.py` has it
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    finally:
        sys.path.remove(str(FOLDER))
    return printed.getvalue()


def assert_has_learned(printed, replicas):
    assert float(re.findall(r"test accuracy (0\.\d+)", printed)[-1]) > 0.65  # chance: 0.1
    *_, total = (line for line in printed.splitlines() if line.startswith("total, "))
    assert total.startswith(f"total, {replicas} replicas")
    assert (float(total.split()[-1]) > 20) == (replicas > 1)


def output_on_worker(strategy, name):
    return output(name)


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("fit", 1),  # on two by the launcher, below
        ("custom_training_loop", 2),
        ("custom_train_step", 2),
    ],
)
def test_on_workers(cluster, name, workers):
    chief, *others = cluster(workers).run(output_on_worker, name, timeout=120)
    assert_has_learned(chief, workers)
    assert not any(others)


@pytest.mark.multi_worker
def test_on_workers_of_the_launcher():
    done = subprocess.run(
        [sys.executable, "-m", "tf_scalecom", "run", "-n", "2", str(FOLDER / "fit.py")],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.removeprefix("[worker 0] ") for line in done.stdout.splitlines()]
    assert_has_learned("\n".join(line for line in lines if not line.startswith("[run]")), 2)


@pytest.mark.slow
def test_on_several_devices_of_one_process():
    printed = run(sys.executable, FOLDER / "multi_gpu.py", cwd=ROOT, TF_CPP_MIN_LOG_LEVEL="3")
    assert_has_learned(printed, 2)
