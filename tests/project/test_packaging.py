"""What `make dist` makes: it builds from its sources alone, trains, and bundles nothing foreign."""

import platform
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import tensorflow as tf
from package_source import ROOT, TRAIN, copy_source, run

import tf_scalecom
from tf_scalecom.ops import built, native

LIBRARY = f"tf_scalecom/ops/{native.LIBRARY.name}"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, str]:
    """The wheel, built from the source distribution with an nvcc that fails, and what was said."""
    folder = tmp_path_factory.mktemp("dist")
    source = copy_source(folder / "source")
    nvcc = folder / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho unsupported host compiler >&2\nexit 1\n")
    nvcc.chmod(0o755)
    said = run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist",
        cwd=source, timeout=900, CUDA_HOME=str(folder / "cuda"),
    )  # fmt: skip
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel, said


@pytest.mark.slow
def test_the_wheel_trains_on_native_kernels_from_a_clean_folder(made, tmp_path):
    wheel, _ = made
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel, cwd=tmp_path)
    output = run(
        sys.executable, "-c", TRAIN,
        cwd=tmp_path, PYTHONPATH=str(site), TF_SCALECOM_BACKEND="native",
    )  # fmt: skip
    assert f"imported from {site}" in output
    assert "trained True" in output


@pytest.mark.slow
def test_without_a_working_nvcc_the_kernels_are_those_of_the_cpu(made, tmp_path):
    wheel, said = made
    assert said.count("the GPU kernels were not built, those of the CPU were: ") == 1
    with zipfile.ZipFile(wheel) as archive:
        library = Path(archive.extract(LIBRARY, tmp_path))
    assert built.read(library) == built.Built(
        tf.version.VERSION, str(tf.sysconfig.CXX11_ABI_FLAG), None, (), ()
    )
    assert str(built.read(library)).endswith("; no GPU kernels (no working nvcc when it was built)")


@pytest.mark.slow
def test_no_library_of_tensorflow_or_cuda_is_bundled_or_asked_of_the_system(made, tmp_path):
    wheel, _ = made
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        library = archive.extract(LIBRARY, tmp_path)
    assert [name for name in names if ".so" in name] == [LIBRARY]
    # What else the package needs, TensorFlow has loaded into the process, or the system has.
    needed = re.findall(r"NEEDED.*\[(\w+)", run("readelf", "-d", library, cwd=tmp_path))
    system = {"libstdc++", "libstdc", "libm", "libgcc_s", "libc", "libpthread", "ld-linux-x86-64"}
    assert set(needed) - system == {"libtensorflow_framework"}


@pytest.mark.slow
def test_metadata_are_those_of_the_project(made):
    wheel, _ = made
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
        assert "tf_scalecom/py.typed" in archive.namelist()
        assert metadata.replace("METADATA", "licenses/LICENSE") in archive.namelist()
    version = tf_scalecom.__version__
    assert f"\nVersion: {version}\n" in text
    assert "\nLicense-Expression: Apache-2.0\n" in text
    # One interpreter's extension it is not: only the platform counts, and the oldest C library that
    # has what this one asks for: from 2.5, the oldest that tags name, to the one here.
    tag = rf"tf_scalecom-{version}-py3-none-manylinux_(\d+)_(\d+)_{platform.machine()}\.whl"
    oldest = tuple(map(int, re.fullmatch(tag, wheel.name).groups()))
    assert (2, 5) <= oldest <= tuple(map(int, platform.libc_ver()[1].split(".")))
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", changes, re.M)[0] == version


def test_the_newest_and_the_oldest_tested_versions_are_the_ends_of_the_ranges():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = dict(re.fullmatch(r"([\w-]+)(.*)", each).groups() for each in project["dependencies"])
    newest, oldest = (
        dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / name).read_text(), re.M))
        for name in ("requirements.txt", "requirements-oldest.txt")
    )
    for name, limits in ranges.items():
        least, below = re.fullmatch(r">=([\d.]+),<([\d.]+)", limits).groups()
        assert _numbers(oldest[name])[: len(_numbers(least))] == _numbers(least), name
        assert not any(_numbers(oldest[name])[len(_numbers(least)) :]), name
        assert _numbers(least) <= _numbers(newest[name]) < _numbers(below), name


def _numbers(version):
    return [int(number) for number in version.split(".")]
