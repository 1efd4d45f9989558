"""Bazel builds the same op library as setup.py, offline, and runs the core's C++ tests."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from package_source import ROOT, run

from tf_scalecom.ops import built

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
sys.exit(pytest.main(["-q", "tests/ops/test_ops.py", "-k", "agree_to_the_bit and CPU"]))
"""


class Built(NamedTuple):
    """What Bazel printed of the core's tests, the library, and what pytest printed about that."""

    tests: str
    library: Path
    compared: str


@pytest.fixture(scope="module")
def bazel(tmp_path_factory) -> Built:
    folder = tmp_path_factory.mktemp("bazel")
    # In batch mode, as a server would outlive this session.
    start = ["bazel", "--batch", f"--output_base={folder / 'base'}"]
    options = ["--jobs=2", "--experimental_convenience_symlinks=ignore"]
    settings = {"cwd": ROOT, "timeout": 1800, "TF_SCALECOM_PYTHON": sys.executable}
    tests = run(*start, "test", *options, "//:core_tests", "//:libscalecom_ops.so", **settings)
    (library,) = folder.glob("base/execroot/*/bazel-out/*/bin/custom_ops/libscalecom_ops.so")
    library = Path(shutil.copy(library, folder))
    run(*start, "clean", "--expunge", **settings)
    return Built(tests, library, run(sys.executable, "-c", COMPARE, library, cwd=ROOT))


def test_core_tests_pass(bazel):
    assert bazel.tests.count("PASSED") == 5, bazel.tests


def test_library_gives_the_same_as_plain_tensorflow(bazel):
    assert (built.read(bazel.library).cuda is not None) == (shutil.which("nvcc") is not None)
    # CUDA's runtime is inside.
    undefined = subprocess.run(["nm", "-Du", bazel.library], capture_output=True, text=True).stdout
    assert undefined and "cuda" not in undefined
    assert " passed" in bazel.compared
