"""Bazel builds the same op library as setup.py, offline, and runs the core's C++ tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tf_scalecom.ops import built

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("bazel") is None,
        reason="needs bazel (Debian: apt-get install bazel-bootstrap)",
    ),
]

# The native kernels' own test, on another library than the package's.
COMPARE = """
import pathlib, sys
import pytest
from tf_scalecom.ops import native
native.LIBRARY = pathlib.Path(sys.argv[1])
native.library()
sys.exit(pytest.main(["-q", "tests/test_ops.py", "-k", "agree_to_the_bit and CPU"]))
"""


@pytest.fixture(scope="module")
def bazel(tmp_path_factory):
    """Runs a Bazel command with a server and products of its own; returns what it printed."""
    start = ["bazel", f"--output_base={tmp_path_factory.mktemp('bazel')}", "--max_idle_secs=60"]

    def run(*command):
        process = subprocess.run(
            [*start, *command],
            cwd=ROOT,
            env={**os.environ, "TF_SCALECOM_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    yield run
    run("clean", "--expunge")  # stops the server, too


def test_core_tests_pass(bazel):
    output = bazel("test", "--jobs=2", "//:core_tests")
    assert output.count("PASSED") == 5, output


def test_library_gives_the_same_as_plain_tensorflow(bazel):
    bazel("build", "--jobs=2", "//:libscalecom_ops.so")
    library = Path(bazel("info", "bazel-bin").strip()) / "custom_ops" / "libscalecom_ops.so"
    assert (built.read(library).cuda is not None) == (shutil.which("nvcc") is not None)
    # CUDA's runtime is inside.
    undefined = subprocess.run(["nm", "-Du", library], capture_output=True, text=True).stdout
    assert undefined and "cuda" not in undefined
    process = subprocess.run(
        [sys.executable, "-c", COMPARE, library], cwd=ROOT, capture_output=True, text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert " passed" in process.stdout
