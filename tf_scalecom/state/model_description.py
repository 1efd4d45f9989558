"""What a model is beyond the shapes of its variables, as far as two processes can compare it.

A state fits to a model with the same shapes and dtypes, but means something else there if two of
its layers are swapped, or their activations are others.
"""

import hashlib
import json
import re

import keras
import numpy as np

from tf_scalecom.state import model_objects

# Longer lists, such as vocabularies, are compared by their digest.
_LISTED = 50
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def describe_model(model: keras.Model) -> dict:
    """The layers of a model, in their order, and its loss, as JSON holds them.

    Left out is what a restored state replaces (initializers, seeds) and what differs from process
    to process: the numbers by which Keras tells names apart, and the code of lambdas.
    """
    layers = {
        path or "model": _describe_layer(layer)
        for path, layer in model_objects.layers(model).items()
    }
    # As it comes back from a file, or an enumeration's value would differ from itself.
    return json.loads(json.dumps({**layers, "loss": _plain(getattr(model, "loss", None))}))


def _describe_layer(layer):
    description = {"class": type(layer).__name__, "name": _name(layer.name, type(layer).__name__)}
    config = _config(layer)
    if not isinstance(config, dict):
        return description
    config = {key: value for key, value in config.items() if key != "name"}
    # Those of a model have descriptions of their own.
    parts = config.pop("layers", None) if isinstance(layer, keras.Model) else None
    if hasattr(layer, "operations") and "output_layers" in config:  # a functional one's
        places = {part["name"]: place for place, part in enumerate(parts)}
        description["graph"] = [
            [part["class_name"], _plain(_with_places(part["inbound_nodes"], places))]
            for part in parts
        ]
        for ends in ("input_layers", "output_layers"):
            description[ends] = _plain(_with_places(config.pop(ends), places))
    return {**description, "config": _plain(config)}


def _with_places(nodes, places):
    """Nodes of a functional model in which layers are named by their places in it."""
    if isinstance(nodes, dict):
        return {key: _with_places(value, places) for key, value in nodes.items()}
    if isinstance(nodes, (list, tuple)):
        return [_with_places(value, places) for value in nodes]
    return places.get(nodes, nodes) if isinstance(nodes, str) else nodes


def _name(name, class_name):
    """A name without the number that Keras gives it, if Keras made it from the class."""
    stem = re.sub(r"_\d+$", "", name)
    by_keras = stem.replace("_", "").endswith(class_name.replace("_", "").lower())
    return stem if by_keras else name


def _config(value):
    try:
        return value.get_config()
    except Exception:  # the user's own code, or Keras's NotImplementedError where there is none
        return None


def _plain(value):
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return _plain_mapping(value)
    if isinstance(value, (list, tuple)):
        values = [_plain(part) for part in value]
        return values if len(values) <= _LISTED else f"{len(values)} values, {_digest(values)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}, {_digest(value.tolist())}"
    if hasattr(value, "get_config"):
        return {"class_name": type(value).__name__, "config": _plain(_config(value))}
    if hasattr(value, "__name__"):  # a function or a class
        return "a lambda" if value.__name__ == "<lambda>" else value.__name__
    return type(value).__name__


def _plain_mapping(mapping):
    if mapping.get("class_name") == "__lambda__":
        return "a lambda"
    plain = {
        str(key): _plain(value)
        for key, value in mapping.items()
        if key != "seed" and not str(key).endswith("_initializer")
    }
    if isinstance(plain.get("config"), dict) and isinstance(plain["config"].get("name"), str):
        plain["config"]["name"] = _name(plain["config"]["name"], str(plain.get("class_name")))
    return plain


def _digest(values):
    text = _ADDRESS.sub("", repr(values))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
