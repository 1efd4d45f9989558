"""How the native kernels are built, and what is said where they are not or do not fit."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools
import tensorflow as tf
from package_source import ROOT, TRAIN, copy_source, run

from tf_scalecom.ops import built, native

needs_library = pytest.mark.skipif(
    not native.LIBRARY.exists(), reason="needs the op library: a C++ compiler at installation"
)


@pytest.mark.slow
def test_without_a_compiler_it_installs_and_trains_on_the_twin(tmp_path):
    """And says so: once when it is built, once when it runs."""
    empty = tmp_path / "empty"
    empty.mkdir()
    source, site = copy_source(tmp_path / "source"), tmp_path / "site"
    installed = run(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-v", "--no-deps",
        "--no-build-isolation", "--target", site, source,
        cwd=source, PATH=str(empty), CUDA_HOME="", CXX="", CC="",
    )  # fmt: skip
    assert not list(site.rglob("*.so"))
    trained = run(sys.executable, "-c", TRAIN, cwd=tmp_path, PYTHONPATH=str(site))
    assert f"imported from {site}" in trained
    assert installed.count("the native kernels were not built: ") == 1
    assert "Successfully installed tf-scalecom" in installed
    assert trained.count("plain TensorFlow kernels: the op library cannot be loaded") == 1
    assert "trained True" in trained


@pytest.mark.slow
def test_in_pips_own_environment_it_builds_for_the_installed_tensorflow(tmp_path):
    """As far as the compiler, which would take its time."""
    source, inside, empty = tmp_path / "source", tmp_path / "inside", tmp_path / "empty"
    copy_source(source)
    inside.mkdir()
    empty.mkdir()
    # What pip makes: a path with what the build asks for, and nothing of what is installed.
    for path in Path(setuptools.__file__).parent.parent.glob("setuptools*"):
        (inside / path.name).symlink_to(path)
    (inside / "sitecustomize.py").write_text(
        "import sys\nsys.path[:] = [path for path in sys.path if 'site-packages' not in path]\n"
    )
    build = (
        "import importlib.util, setuptools.build_meta\n"
        "print('inside:', importlib.util.find_spec('tensorflow'))\n"
        "setuptools.build_meta.build_wheel('.')\n"
    )
    said = run(
        sys.executable, "-c", build,
        cwd=source, PYTHONPATH=str(inside), PATH=str(empty), CUDA_HOME="", CXX="", CC="",
    )  # fmt: skip
    assert "inside: None" in said
    assert "the native kernels were not built: [Errno 2] No such file or directory: " in said
    assert list(source.glob("*.whl"))


def test_a_setuptools_too_old_to_build_with_is_said(tmp_path):
    (tmp_path / "setuptools.py").write_text("__version__ = '65.5.0'")
    process = subprocess.run(
        [sys.executable, ROOT / "setup.py", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 1
    assert process.stderr.startswith("tf_scalecom: expected setuptools 77 or newer to build with; ")
    assert "received 65.5.0. Leave out --no-build-isolation, or first run `pip install" in (
        process.stderr
    )


@needs_library
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_with_nvcc_there_are_gpu_kernels_in_the_library():
    record = built.read(native.LIBRARY)
    assert record.cuda_binaries == ((8, 0), (9, 0))
    assert record.cuda_ptx == ((7, 5), (9, 0))
    release = run("nvcc", "--version", cwd=ROOT).partition("release ")[2].partition(",")[0]
    assert record.cuda == release
    # CUDA's runtime is inside, and out of the way of TensorFlow's own.
    contents = native.LIBRARY.read_bytes()
    assert b"libcudart.so" not in contents
    assert "cudaLaunchKernel" not in run("nm", "-D", native.LIBRARY, cwd=ROOT)


# What a process with the library named on the command line says of it.
CHOOSE = """
import pathlib, sys
from tf_scalecom.ops import backend, native
native.LIBRARY = pathlib.Path(sys.argv[1])
try:
    print("chose", backend()[0].name)
except RuntimeError as error:
    print("RuntimeError:", error)
loaded = pathlib.Path("/proc/self/maps").read_text()
print("loaded", sys.argv[1] in loaded)
"""


@needs_library
@pytest.mark.parametrize("wanted", ["auto", "native"])
@pytest.mark.slow
def test_a_library_for_another_tensorflow_is_named_and_not_loaded(wanted, tmp_path):
    other = tmp_path / "libscalecom_ops.so"
    ours = f"scalecom_built:tensorflow={tf.version.VERSION}".encode()
    contents = native.LIBRARY.read_bytes()
    assert contents.count(ours) == 1
    other.write_bytes(contents.replace(ours, ours[:-1] + b"9"))
    output = run(sys.executable, "-c", CHOOSE, other, cwd=ROOT, TF_SCALECOM_BACKEND=wanted)
    message = (
        f"expected libscalecom_ops.so to be built for TensorFlow {tf.version.VERSION} (C++11 ABI "
        f"{tf.sysconfig.CXX11_ABI_FLAG}), which is running; received one built for TensorFlow "
        f"{tf.version.VERSION[:-1]}9 (C++11 ABI {tf.sysconfig.CXX11_ABI_FLAG}). Install the "
        "package again"
    )
    assert output.count(message) == 1
    assert ("chose xla" if wanted == "auto" else "RuntimeError: Expected native") in output
    assert "loaded False" in output


def test_a_library_without_a_record_is_refused(tmp_path):
    library = tmp_path / "libscalecom_ops.so"
    library.write_bytes(b"\x7fELF")
    with pytest.raises(OSError, match="received one built for TensorFlow unknown"):
        built.check_tensorflow(library)


CPU_ONLY = built.Built("2.21.0", "1", None, (), ())
WITH_GPU = built.Built("2.21.0", "1", "12.8", ((8, 0), (9, 0)), ((7, 5), (9, 0)))


@pytest.mark.parametrize(
    ("record", "capabilities", "driver", "problem"),
    [
        (WITH_GPU, [(8, 0), (9, 0)], 12080, None),
        (WITH_GPU, [(12, 0)], 13000, None),
        (WITH_GPU, [(8, 6)], 12040, None),  # minor versions of CUDA are compatible
        (WITH_GPU, [], None, None),
        (WITH_GPU, [(7, 5)], 12080, None),
        (WITH_GPU, [(8, 6)], 12000, "for which a driver must know CUDA 12.1; the GPU's knows 12.0"),
        # The driver compiles these from PTX, which must not be newer than it.
        (WITH_GPU, [(7, 5)], 12040, "built with CUDA 12.8, the GPU's driver knows CUDA 12.4"),
        (WITH_GPU, [(8, 0), (12, 0)], 12040, "built with CUDA 12.8, the GPU's driver knows"),
        (WITH_GPU, [(9, 0), (7, 0)], 12080, "need compute capability 7.5, a GPU in sight has 7.0"),
        (WITH_GPU, [(9, 0)], 11080, "for which a driver must know CUDA 12.1; the GPU's knows 11.8"),
        (
            dataclasses.replace(WITH_GPU, cuda="13.0"),
            [(9, 0)],
            12080,
            "the GPU's driver knows CUDA 12.8",
        ),
        (CPU_ONLY, [(9, 0)], 13000, "a GPU is in sight, and the op library has no GPU kernels"),
    ],
)
def test_what_keeps_the_library_from_the_gpus_in_sight(record, capabilities, driver, problem):
    said = built.gpu_problem(record, capabilities, driver)
    assert said is None if problem is None else problem in said


@pytest.mark.parametrize(
    ("capability", "code"),
    [
        ((7, 0), None),
        ((7, 5), "PTX for 7.5"),
        ((8, 0), "machine code for 8.0"),
        ((8, 9), "machine code for 8.0"),
        ((9, 0), "machine code for 9.0"),
        ((10, 3), "PTX for 9.0"),
        ((12, 0), "PTX for 9.0"),
    ],
)
def test_what_a_gpu_runs(capability, code):
    assert WITH_GPU.code_for(capability) == code
