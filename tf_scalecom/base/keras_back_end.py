"""Keras's back end is TensorFlow, or nothing of this package can work."""

import json
import os
import sys
from pathlib import Path

_VARIABLE = "KERAS_BACKEND"


def require_tensorflow() -> None:
    """Refuses Keras's other back ends by name; imports neither Keras nor TensorFlow.

    Raises:
        ImportError: Keras uses another one, or would if it were imported.
    """
    name, place = _chosen()
    if name != "tensorflow":
        raise ImportError(
            "tf_scalecom: expected Keras's back end to be tensorflow, as gradients travel through "
            f"tf.distribute; received {name!r}, from {place}. Set the environment variable "
            f"{_VARIABLE}=tensorflow before Keras is imported."
        )


def _chosen() -> tuple[str, str]:
    """The back end, and where that is said. Keras's order: the variable, its file, its default."""
    config = getattr(sys.modules.get("keras"), "config", None)  # none while its import begins
    if config is not None:
        return config.backend(), "keras.config.backend()"
    if name := os.environ.get(_VARIABLE):
        return name, f"the environment variable {_VARIABLE}"
    file = _settings_file()
    try:
        return json.loads(file.read_text()).get("backend", "tensorflow"), str(file)
    except (OSError, ValueError):
        return "tensorflow", "Keras's default"


def _settings_file() -> Path:
    home = os.path.expanduser("~")
    folder = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    return Path(os.environ.get("KERAS_HOME", folder), "keras.json")
