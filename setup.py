"""Builds the native kernels (custom_ops/) into the package, where there is a compiler.

Everything else about the package is in pyproject.toml. Without a compiler or TensorFlow's headers
the package installs all the same, and runs on the plain TensorFlow kernels. Without nvcc (in
CUDA_HOME, or on the path) the native kernels are those of the CPU.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import setuptools

# Without build isolation nobody else looks at what pyproject.toml asks for.
_OLDEST_SETUPTOOLS = 77
if int(setuptools.__version__.partition(".")[0]) < _OLDEST_SETUPTOOLS:
    raise SystemExit(
        f"tf_scalecom: expected setuptools {_OLDEST_SETUPTOOLS} or newer to build with; received "
        f"{setuptools.__version__}. Leave out --no-build-isolation, or first run "
        f"`pip install 'setuptools>={_OLDEST_SETUPTOOLS}'`."
    )

from setuptools import Distribution, Extension, setup  # noqa: E402
from setuptools.command.bdist_wheel import bdist_wheel  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402

NATIVE = pathlib.Path("custom_ops")

# Of the TensorFlow to build for, asked in a process of its own.
TENSORFLOW_FACTS = """
import json, tensorflow as tf
print(json.dumps([tf.version.VERSION, tf.sysconfig.get_compile_flags(),
                  tf.sysconfig.get_link_flags()]))
"""


def find_tensorflow() -> tuple[str, list[str], list[str]]:
    """Version, compiler's and linker's flags of the TensorFlow to build for.

    pip builds in an environment of its own, which is no more than a PYTHONPATH (and no user
    site-packages) for the interpreter that the package is installed for. Without these the same
    interpreter has what is installed there, TensorFlow too.

    Raises:
        OSError: There is none.
    """
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    for environment in (dict(os.environ), outside):
        facts = subprocess.run(
            [sys.executable, "-c", TENSORFLOW_FACTS],
            capture_output=True, text=True, env=environment,
        )  # fmt: skip
        if facts.returncode == 0:
            return json.loads(facts.stdout.splitlines()[-1])
    said = facts.stderr.strip().splitlines() or [f"exit code {facts.returncode}"]
    raise OSError(
        f"TensorFlow is not there to build for ({said[-1]}): install it, then the package again"
    )


def sources() -> dict:
    """The lists of sources.bzl, which is Python too."""
    names: dict = {}
    exec((NATIVE / "sources.bzl").read_text(), names)
    return names


def find_nvcc() -> str | None:
    """The CUDA compiler of CUDA_HOME, else of the path."""
    home = os.environ.get("CUDA_HOME")
    return (home and shutil.which("nvcc", path=pathlib.Path(home, "bin"))) or shutil.which("nvcc")


def find_cuda_library(nvcc: str, name: str) -> str:
    """A library of nvcc's toolkit: a dry run says where that is, be nvcc a link or a script."""
    facts = subprocess.run([nvcc, "--dryrun", "-c", "none.cu"], capture_output=True, text=True)
    folders = re.findall(r'"-L([^"]*)"', facts.stderr)
    for folder in folders:
        if pathlib.Path(folder, name).exists():
            return str(pathlib.Path(folder, name))
    raise OSError(f"expected {name} in a library folder of {nvcc}; received {folders}")


class BuildOps(build_ext):
    """Compiles a plain shared library against the installed TensorFlow."""

    def get_ext_filename(self, fullname):
        # No Python module: TensorFlow loads it, whatever the interpreter's version.
        return str(pathlib.Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, extension):
        target = pathlib.Path(self.get_ext_fullpath(extension.name)).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        version, compile_flags, link_flags = find_tensorflow()
        lists = sources()
        includes = ["-Iinclude", "-I."]
        gxx = [self.compiler.compiler_cxx[0], *lists["COMMON_FLAGS"], *includes]
        # TensorFlow's headers are not ours to lint.
        system_includes = [flag.replace("-I", "-isystem") for flag in compile_flags]
        ops_gxx = [*gxx, *lists["OPS_FLAGS"], *system_includes, f"-DSCALECOM_TENSORFLOW={version}"]
        with ThreadPoolExecutor(os.cpu_count()) as pool:

            def compile_all(command, names):
                return [pool.submit(self._compile, command, name) for name in names]

            jobs = compile_all([*gxx, *lists["CORE_FLAGS"]], lists["CORE_CPU_SOURCES"])
            jobs += compile_all(ops_gxx, lists["OPS_SOURCES"])
            cuda_jobs = []
            if nvcc := find_nvcc():
                cuda_jobs = compile_all(
                    [nvcc, *lists["CUDA_FLAGS"], *includes],
                    lists["CORE_CUDA_SOURCES"] + lists["OPS_CUDA_SOURCES"],
                ) + compile_all(ops_gxx, lists["OPS_GPU_SOURCES"])
            objects = [job.result() for job in jobs]
            if cuda_jobs:
                try:
                    cuda_objects = [job.result() for job in cuda_jobs]
                    objects += [*cuda_objects, find_cuda_library(nvcc, lists["CUDA_RUNTIME"])]
                    link_flags += lists["CUDA_LINK_FLAGS"]
                except (OSError, subprocess.CalledProcessError) as error:
                    _say(f"the GPU kernels were not built, those of the CPU were: {error}")
        self._run([gxx[0], "-shared", "-pthread", *objects, *link_flags, "-o", str(target)])

    def _compile(self, command, source):
        """Compiles one of the sources; returns the object's path."""
        output = pathlib.Path(self.build_temp, source.replace("/", "_") + ".o").absolute()
        self._run([*command, "-c", source, "-o", str(output)])
        return str(output)

    def _run(self, command):
        subprocess.run(command, cwd=NATIVE, check=True)

    def run(self):
        try:
            super().run()
        except (OSError, subprocess.CalledProcessError) as error:
            self._say_without(error)

    def _say_without(self, reason):
        _say(
            f"the native kernels were not built: {reason}. The package works on plain TensorFlow "
            "kernels; `python -m tf_scalecom.ops` says which are in use."
        )


def _say(message):
    print(f"tf_scalecom: {message}", file=sys.stderr)


class BinaryDistribution(Distribution):
    """A wheel with the library in it fits one platform."""

    def has_ext_modules(self):
        return True


class AnyPythonWheel(bdist_wheel):
    """The library is no Python module: it asks for a TensorFlow, and for no one interpreter.

    And for a C library: the tag has the oldest one that it loads with (PEP 600).
    """

    def get_tag(self):
        platform = super().get_tag()[2]
        library = pathlib.Path(self.bdist_dir, "tf_scalecom", "ops", "libscalecom_ops.so")
        if library.exists() and platform.startswith("linux_"):
            asked = re.findall(rb"GLIBC_(\d+)\.(\d+)\0", library.read_bytes())
            major, minor = max((int(major), int(minor)) for major, minor in asked)
            platform = f"manylinux_{major}_{minor}_{platform.removeprefix('linux_')}"
        return "py3", "none", platform


setup(
    ext_modules=[Extension("tf_scalecom.ops.libscalecom_ops", sources=[])],
    cmdclass={"build_ext": BuildOps, "bdist_wheel": AnyPythonWheel},
    distclass=BinaryDistribution,
)
