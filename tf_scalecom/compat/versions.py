"""The versions of TensorFlow and Keras that are tested; pyproject.toml has the same."""

import importlib
import re

TESTED = {"tensorflow": ">=2.20,<2.22", "keras": ">=3.15,<3.16"}


def installed(package: str) -> str:
    """Version of an imported package, by what it says itself, e.g. "2.21.0"."""
    return importlib.import_module(package).__version__


def is_tested(package: str, version: str) -> bool:
    """Whether a version, e.g. "3.15.0" or "2.21.0-rc1", is in the range of a package."""
    least, below = re.findall(r"[\d.]+", TESTED[package])
    return _numbers(least) <= _numbers(version) < _numbers(below)


def _numbers(version):
    # Two: a release candidate of the least version is one of that, not one before it.
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
