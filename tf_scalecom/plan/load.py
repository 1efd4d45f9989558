"""The model to plan for: from a `.keras` file or an import path."""

import importlib
import pathlib

import keras

_EXPECTED = "plan: expected a .keras file or an import path module:function"


def load_model(where: str) -> keras.Model:
    """The built model at a path `name.keras`, or returned by `module:function`.

    Raises:
      ValueError: there is none, or it has no trainable variables yet.
    """
    if where.endswith(".keras"):
        model = _from_file(where)
    elif ":" in where:
        model = _from_function(where)
    else:
        raise ValueError(f"{_EXPECTED}; received {where!r}. Write it like train:build_model.")
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"plan: expected {where} to return a keras.Model; received {type(model).__name__}. "
            "Name a function without arguments that returns the model."
        )
    if not model.trainable_variables:
        raise ValueError(
            f"plan: expected a model with trainable variables; received {model.name!r} of {where}, "
            "which has none. Give it an Input, or call it once, so that it is built."
        )
    return model


def _from_file(where):
    if not pathlib.Path(where).is_file():
        raise ValueError(f"{_EXPECTED}; received {where!r}, which is no file here. Check the path.")
    try:
        return keras.saving.load_model(where)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"plan: expected {where} to load by itself; received {error}. If the model has layers "
            "of your own, name the function that builds it: module:function."
        ) from error


def _from_function(where):
    module_name, _, function_name = where.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        return function()
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{_EXPECTED}; received {where!r}, which fails: {error}. The module is looked for from "
            "the current folder, and the function is called without arguments."
        ) from error
