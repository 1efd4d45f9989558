"""The native core without TensorFlow: builds it with the C++ compiler and runs its own tests."""

import shutil
import subprocess

import pytest


def run(directory, program, *arguments, isa="avx512"):
    process = subprocess.run(
        [str(directory / program), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={"SCALECOM_ISA": isa},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.parametrize("program", ["layout_test", "arguments_test"])
@pytest.mark.slow
def test_layout_and_arguments(build_native, program):
    run(build_native("core_tests", TESTS=program), program)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
@pytest.mark.slow
def test_equal_to_the_reference_on_every_instruction_set(build_native, isa):
    """An instruction set that this machine lacks falls back to the next, and says so."""
    output = run(build_native("core_tests"), "sweep_cpu", "5", isa=isa)
    assert "steps equal to the reference" in output
    print(output)


@pytest.mark.slow
def test_another_kind_of_processor(build_native):
    if not all(map(shutil.which, ("aarch64-linux-gnu-g++", "qemu-aarch64-static"))):
        pytest.skip("needs Debian's g++-aarch64-linux-gnu and qemu-user-static")
    build_native("aarch64", STRIDE=100)


@pytest.mark.slow
def test_fuzz(build_native):
    """A short run without a sanitizer; `make -C custom_ops sanitize` is the long one."""
    assert "inputs in" in run(build_native("fuzz_program", FUZZ_SECONDS=2), "fuzz")


@pytest.mark.slow
def test_cuda_kernels_emulated_on_the_cpu(build_native):
    programs = build_native("emulator")
    assert "steps equal" in run(programs, "sweep_emulated", "300")
    assert "equal to a sort" in run(programs, "radix_select_emulated")


@pytest.mark.gpu
def test_cuda_kernels_on_the_gpu(build_native):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc to build the CUDA core")
    if shutil.which("nvidia-smi") is None or subprocess.run(["nvidia-smi", "-L"]).returncode != 0:
        pytest.skip("needs a GPU: custom_ops/bench/run.sh cuda runs there without TensorFlow")
    assert "steps equal" in run(build_native("cuda", CUDA_ARCH="-arch=native"), "sweep_cuda", "5")
