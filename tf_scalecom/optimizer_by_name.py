"""Keras finds `ScaleComOptimizer` in a saved model before anybody has imported it.

Keras knows the classes of others by the names under which they were registered, which happens when
their modules are imported. This package imports its own when they are used, and a script that
loads a model uses none of them by name.
"""

import sys

# As `ScaleComOptimizer` registers itself.
_NAME = "tf_scalecom>ScaleComOptimizer"


class _NotYetImported:
    """Stands for the class in Keras's list, until the class comes and takes the place."""

    @staticmethod
    def from_config(config):
        from tf_scalecom.optimizer import ScaleComOptimizer

        return ScaleComOptimizer.from_config(config)


def register() -> None:
    """Has Keras, which is imported, know the name."""
    keras = sys.modules["keras"]
    keras.saving.get_custom_objects().setdefault(_NAME, _NotYetImported)
