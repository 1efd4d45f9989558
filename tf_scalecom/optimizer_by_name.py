"""Keras finds the optimizers of this package in a saved model before anybody has imported it.

Keras knows the classes of others by the names under which they were registered, which happens when
their modules are imported. This package imports its own when they are used, and a script that
loads a model uses none of them by name.
"""

import importlib
import sys

# As the classes register themselves, and where they are.
_MODULES = {
    "CompressedOptimizer": "tf_scalecom.compressed_optimizer",
    "ScaleComOptimizer": "tf_scalecom.optimizer",
}


class _NotYetImported:
    """Stands for a class in Keras's list, until the class comes and takes the place."""

    def __init__(self, name: str):
        self._name = name

    def from_config(self, config):
        return getattr(importlib.import_module(_MODULES[self._name]), self._name).from_config(
            config
        )


def register() -> None:
    """Has Keras, which is imported, know the names."""
    known = sys.modules["keras"].saving.get_custom_objects()
    for name in _MODULES:
        known.setdefault(f"tf_scalecom>{name}", _NotYetImported(name))
