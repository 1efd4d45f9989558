"""The packed check of the CUDA kernels: what it says on machines where it cannot run."""

import subprocess
import tarfile

import pytest
from package_source import ROOT

ARCHIVE = ROOT / "custom_ops" / "build" / "gpu_check.tar.gz"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not ARCHIVE.exists(),
        reason="needs the packed check: `make -C custom_ops gpu_check`, where nvcc is",
    ),
]

# A driver that knows a CUDA, and no GPU: what the runtime asks of it first.
DRIVER = """
int cuDriverGetVersion(int *version) { *version = CUDA; return 0; }
int cuInit(unsigned flags) { return 100; }
"""


def driver_of(cuda, folder):
    """A folder with a libcuda.so.1; of no driver, an empty one."""
    folder.mkdir()
    if cuda is not None:
        (folder / "driver.c").write_text(DRIVER)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", f"-DCUDA={cuda}", "driver.c", "-o", "libcuda.so.1"],
            cwd=folder,
            check=True,
        )
    return folder


@pytest.mark.parametrize(
    ("cuda", "said"),
    [
        (None, "expected an NVIDIA driver; received none"),
        (12000, "expected a driver that knows CUDA"),
        (99000, "expected a GPU; received none"),
    ],
)
def test_one_line_says_why_it_cannot_run(cuda, said, tmp_path):
    if subprocess.run(["which", "nvidia-smi"], capture_output=True).returncode == 0:
        pytest.skip("needs a machine without a GPU's driver")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    process = subprocess.run(
        [tmp_path / "gpu_check" / "gpu_check.sh"],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(driver_of(cuda, tmp_path / "driver"))},
    )
    assert process.returncode == 77
    assert process.stdout == "" and process.stderr.startswith(f"gpu_check.sh: {said}")
    assert process.stderr.count("\n") == 1 and process.stderr.rstrip()[-1].isalpha()
