"""The model to plan for, and how its gradients would travel."""

import importlib
import os
import zipfile
import zlib
from collections.abc import Sequence

import keras

from tf_scalecom.base.raised_at import told
from tf_scalecom.reduction.clt_k import CltK
from tf_scalecom.reduction.owners import OwnersTopK
from tf_scalecom.reduction.power_sgd import PowerSGD
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.low_rank import LowRankPlan

_EXPECTED = "expected a .keras file or an import path module:function"


def load_model(where: str) -> keras.Model:
    """The built model at a path `name.keras`, or returned by `module:function`.

    Raises:
        ValueError: there is none, or it has no trainable variables yet.
    """
    if where.endswith(".keras"):
        model = _from_file(where)
    elif all(where.partition(":")) and not where.startswith("."):
        model = _from_function(where)
    else:
        raise ValueError(f"{_EXPECTED}; received {where!r}. Write it like train:build_model.")
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"expected {where} to return a keras.Model; received {type(model).__name__}. "
            "Name a function without arguments that returns the model."
        )
    if not model.trainable_variables:
        raise ValueError(
            f"expected a model with trainable variables; received {model.name!r} of {where}, "
            "which has none. Give it an Input, or call it once, so that it is built."
        )
    return model


def _from_file(where):
    if not os.path.isfile(where):
        raise ValueError(f"{_EXPECTED}; received {where!r}, which is no file here. Check the path.")
    if not zipfile.is_zipfile(where):
        raise ValueError(
            f"expected {where} to be a model saved by Keras; received a file of another "
            "kind. Save it by model.save()."
        )
    try:
        return keras.saving.load_model(where)
    except (OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"expected {where} to be a model saved by Keras; received a damaged file "
            f"({told(error)}). Save it again."
        ) from error
    except Exception as error:  # whatever Keras, or a layer, makes of what stands in it
        raise ValueError(
            f"expected {where} to load by itself; received {told(error)}. If it is undamaged and "
            "the model has layers of your own, name the function that builds it: module:function."
        ) from error


def _from_function(where):
    module_name, _, function_name = where.partition(":")
    try:
        return getattr(importlib.import_module(module_name), function_name)()
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{_EXPECTED}; received {where!r}, which fails: {told(error)}. The module is looked "
            "for from the current folder, and the function is called without arguments."
        ) from error


def layouts_of(
    model: keras.Model, ratios: Sequence[float | str], value_dtypes: Sequence[str]
) -> tuple[tuple[str, Layout], ...]:
    """(name, plan) for each ratio and dtype of values, as `ScaleComOptimizer` makes it.

    Raises:
        ValueError: as the optimizer does: "auto" does not know a layer of the model.
    """
    layouts = []
    for ratio in ratios:
        for dtype in value_dtypes:
            layout = CltK(ratio, value_dtype=dtype).plan(model.trainable_variables)
            layouts.append((_name(ratio, dtype), layout))
    return tuple(layouts)


def owners_of(
    model: keras.Model, ratios: Sequence[float | str], value_dtype: str
) -> tuple[tuple[str, Layout], ...]:
    """As `layouts_of`, for `methods.OwnersTopK`."""
    return tuple(
        (
            f"{_name(ratio, value_dtype)}, owners",
            OwnersTopK(ratio, value_dtype=value_dtype).plan(model.trainable_variables),
        )
        for ratio in ratios
    )


def low_rank_of(model: keras.Model, ranks: Sequence[int]) -> tuple[tuple[str, LowRankPlan], ...]:
    """(name, plan) for each rank, as `methods.PowerSGD` makes it."""
    variables = model.trainable_variables
    return tuple((f"PowerSGD rank {rank}", PowerSGD(rank).plan(variables)) for rank in ranks)


def _name(ratio, dtype):
    name = ratio if ratio == "auto" else f"{ratio:g}x"
    return name if dtype == "float32" else f"{name} {dtype}"
