"""What the op library was built for, read from its file without loading it.

A library for another TensorFlow may crash the process that loads it, or fail with a message about
a mangled symbol. So custom_ops/tf/record.h leaves a few lines of text in it.
"""

import ctypes
import dataclasses
import pathlib
import re
from collections.abc import Iterable

import tensorflow as tf

_NO_GPU_KERNELS = "no GPU kernels (no working nvcc when it was built)"
_PTX = "PTX"
# The CUDA from which on a kernel's parameters may be over 4 KiB: lists of tensors are.
_LARGE_PARAMETERS = (12, 1)
_RECORD = re.compile(rb"scalecom_built:(\w+)=([^\0]*)\0")


@dataclasses.dataclass(frozen=True)
class Built:
    """The record of one library.

    Attributes:
        tensorflow: version of TensorFlow, "" if there is no record.
        cxx11_abi: "1" or "0", the ABI of libstdc++.
        cuda: version of the CUDA toolkit, e.g. "13.0"; None without GPU kernels.
        cuda_binaries: compute capabilities that the GPU kernels are machine code for, rising:
            (8, 0), ... Later ones of the same generation run that, too.
        cuda_ptx: those that they are PTX for, from which the driver makes machine code for later
            ones.
    """

    tensorflow: str
    cxx11_abi: str
    cuda: str | None
    cuda_binaries: tuple[tuple[int, int], ...]
    cuda_ptx: tuple[tuple[int, int], ...]

    def __str__(self):
        gpu = _NO_GPU_KERNELS
        if self.cuda:
            gpu = (
                f"GPU kernels for compute capability {', '.join(map(_text, self.cuda_binaries))}, "
                f"PTX for {', '.join(map(_text, self.cuda_ptx))} and later, CUDA {self.cuda}"
            )
        return f"built for TensorFlow {self.tensorflow}; {gpu}"

    def code_for(self, capability: tuple[int, int]) -> str | None:
        """What a GPU runs: "machine code for 8.0", or "PTX for 9.0"; None if there is nothing."""
        same = [b for b in self.cuda_binaries if b[0] == capability[0] and b <= capability]
        earlier = [p for p in self.cuda_ptx if p <= capability]
        if same:
            return f"machine code for {_text(same[-1])}"
        return f"{_PTX} for {_text(earlier[-1])}" if earlier else None


def read(library: pathlib.Path) -> Built:
    """Reads the record of a library."""
    facts = {name.decode(): value.decode() for name, value in _RECORD.findall(library.read_bytes())}
    return Built(
        facts.get("tensorflow", ""),
        facts.get("cxx11_abi", ""),
        facts.get("cuda"),
        _capabilities(facts.get("cuda_binaries", "")),
        _capabilities(facts.get("cuda_ptx", "")),
    )


def _capabilities(listed):
    # nvcc writes 80 for 8.0.
    return tuple(sorted(divmod(int(number), 10) for number in listed.split("+") if number))


def check_tensorflow(library: pathlib.Path) -> None:
    """Raises an OSError unless a library was built for the TensorFlow that is running."""
    built = read(library)
    abi = str(tf.sysconfig.CXX11_ABI_FLAG)
    if (built.tensorflow, built.cxx11_abi) != (tf.version.VERSION, abi):
        raise OSError(
            f"expected {library.name} to be built for TensorFlow {tf.version.VERSION} (C++11 ABI "
            f"{abi}), which is running; received one built for TensorFlow "
            f"{built.tensorflow or 'unknown'} (C++11 ABI {built.cxx11_abi or 'unknown'}). Install "
            "the package again."
        )


def gpu_problem(
    built: Built, capabilities: Iterable[tuple[int, int]], driver: int | None
) -> str | None:
    """Why a library's kernels cannot run on the GPUs in sight; None if they can.

    Args:
        built: the library's record.
        capabilities: compute capability of each GPU.
        driver: the newest CUDA that the driver knows, as 1000 * major + 10 * minor; None if it does
            not say.
    """
    if built.cuda is None:
        return f"a GPU is in sight, and the op library has {_NO_GPU_KERNELS}"
    is_compiled_by_driver = False
    for capability in capabilities:
        code = built.code_for(capability)
        if code is None:
            least = min(built.cuda_binaries + built.cuda_ptx)
            return (
                f"the op library's GPU kernels need compute capability {_text(least)}, a GPU in "
                f"sight has {_text(capability)}"
            )
        is_compiled_by_driver |= code.startswith(_PTX)
    if driver is None:
        return None
    known = driver // 1000, driver % 1000 // 10
    if known < _LARGE_PARAMETERS:
        return (
            f"the op library's GPU kernels have large parameters, for which a driver must know "
            f"CUDA {_text(_LARGE_PARAMETERS)}; the GPU's knows {_text(known)}: update it"
        )
    major, minor = map(int, built.cuda.split("."))
    if known[0] < major or (is_compiled_by_driver and known < (major, minor)):
        # Machine code runs with any driver of the same major version; PTX may be too new for one.
        return (
            f"the op library is built with CUDA {built.cuda}, the GPU's driver knows CUDA "
            f"{_text(known)}: update it, or build with an older nvcc"
        )
    return None


def gpu_facts() -> tuple[list[tuple[int, int]], int | None]:
    """Compute capabilities of the GPUs in sight, and the driver's CUDA version."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    capabilities = [d["compute_capability"] for d in details if "compute_capability" in d]
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        failed = True
    return capabilities, None if failed else version.value


def _text(capability):
    return ".".join(map(str, capability))
