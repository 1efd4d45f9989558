"""Builds the native kernels (custom_ops/) into the package, where there is a compiler.

Everything else about the package is in pyproject.toml. Without a compiler or TensorFlow's headers
the package installs all the same, and runs on the plain TensorFlow kernels.
"""

import importlib.util
import pathlib
import subprocess
import sys

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = pathlib.Path("custom_ops")


def sources() -> dict:
    """The lists of sources.bzl, which is Python too."""
    names: dict = {}
    exec((NATIVE / "sources.bzl").read_text(), names)
    return names


class BuildOps(build_ext):
    """Compiles a plain shared library against the installed TensorFlow."""

    def get_ext_filename(self, fullname):
        # No Python module: TensorFlow loads it, whatever the interpreter's version.
        return str(pathlib.Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, extension):
        target = pathlib.Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        objects = pathlib.Path(self.build_temp).absolute()
        objects.mkdir(parents=True, exist_ok=True)
        lists = sources()
        # TensorFlow's headers are not ours to lint.
        tensorflow_flags = [
            flag.replace("-I", "-isystem") for flag in self._tensorflow("get_compile_flags")
        ]
        compiler = self.compiler.compiler_cxx[0]
        shared = [*lists["COMMON_FLAGS"], "-Iinclude", "-I."]
        built = []
        for group, flags in (
            (lists["CORE_CPU_SOURCES"], lists["CORE_FLAGS"]),
            (lists["OPS_SOURCES"], [*lists["OPS_FLAGS"], *tensorflow_flags]),
        ):
            for source in group:
                built.append(str(objects / source.replace("/", "_")) + ".o")
                self._run([compiler, *shared, *flags, "-c", source, "-o", built[-1]])
        links = self._tensorflow("get_link_flags")
        self._run([compiler, "-shared", "-pthread", *built, *links, "-o", str(target.absolute())])

    def _run(self, command):
        subprocess.run(command, cwd=NATIVE, check=True)

    def _tensorflow(self, function):
        """Flags of the TensorFlow to build for, asked in a process of its own."""
        code = f"import tensorflow as tf; print(*tf.sysconfig.{function}(), sep='\\n')"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                check=True)
        return result.stdout.split("\n")[:-1]

    def run(self):
        if importlib.util.find_spec("tensorflow") is None:
            self._say_without("TensorFlow is not there to build for (--no-build-isolation)")
            return
        try:
            super().run()
        except (OSError, subprocess.CalledProcessError) as error:
            self._say_without(error)

    def _say_without(self, reason):
        print(
            f"tf_scalecom: the native kernels were not built: {reason}. The package works on plain "
            "TensorFlow kernels; `python -m tf_scalecom.ops` says which are in use.",
            file=sys.stderr,
        )


class BinaryDistribution(Distribution):
    """A wheel with the library in it fits one platform."""

    def has_ext_modules(self):
        return True


setup(
    ext_modules=[Extension("tf_scalecom.ops.libscalecom_ops", sources=[])],
    cmdclass={"build_ext": BuildOps},
    distclass=BinaryDistribution,
)
