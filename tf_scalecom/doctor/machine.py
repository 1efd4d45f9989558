"""What one machine has for this package: versions, kernels, compilers, GPUs, TensorFlow's build."""

import os
import platform
import shutil
import subprocess
import sysconfig

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.base.terminal import one_line, shortened
from tf_scalecom.ops import built, native
from tf_scalecom.version import __version__

_COMPILER_SECONDS = 20


def versions() -> dict[str, str]:
    """Version by name; workers of one cluster need the same ones."""
    return {
        "tf_scalecom": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def kernels() -> dict[str, str | None]:
    """The kernels in use ("backend"), why ("reason"), and what the op library holds ("library").

    Raises:
        ValueError, RuntimeError: as `ops.backend`.
    """
    in_use, reason = ops.backend()
    library = str(built.read(native.LIBRARY)) if native.LIBRARY.exists() else None
    return {"backend": in_use.name, "reason": reason, "library": library}


def compilers() -> dict[str, str | None]:
    """First or last line of what `--version` says of the compilers that build the kernels.

    None for one that is not there. "c++" is that of CXX, else the one Python was built with;
    "nvcc" that of CUDA_HOME, else of the path.
    """
    words = os.environ.get("CXX", "").split() or (sysconfig.get_config_var("CXX") or "g++").split()
    toolkit = os.environ.get("CUDA_HOME")
    nvcc = (toolkit and shutil.which("nvcc", path=os.path.join(toolkit, "bin"))) or "nvcc"
    return {"c++": _version_line(words[0], 0), "nvcc": _version_line(nvcc, -1)}


def _version_line(program, line):
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMPILER_SECONDS,
        )
        said = done.stdout.decode(errors="replace").strip().splitlines()[line]
        return f"{path}: {shortened(one_line(said))}"
    except (OSError, subprocess.TimeoutExpired, IndexError) as error:
        return f"{path}: does not say its version ({error})"


def gpus() -> list[str]:
    """The GPUs that TensorFlow sees, with their compute capability."""
    described = []
    for device in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(device)
        capability = ".".join(map(str, details.get("compute_capability", ("unknown",))))
        name = details.get("device_name", device.name)
        described.append(f"{name}, compute capability {capability}")
    return described


def tensorflow_build() -> dict[str, str | None]:
    """Versions of CUDA and cuDNN that TensorFlow was built with; None without."""
    info = tf.sysconfig.get_build_info()
    return {"cuda": info.get("cuda_version"), "cudnn": info.get("cudnn_version")}
