"""Optimizers that answer a gradient over many steps: under compression they do it too late.

An element's gradients wait in the residual until they are sent, and momentum goes on with them
after that. docs/recipe.md has what it costs.
"""

from collections.abc import Sequence

import keras
from absl import logging

from tf_scalecom.wire.config import WARMUP_RATIO
from tf_scalecom.wire.layout import TensorLayout

# What Keras's optimizers call it, and what it cost where it was measured.
_ON_IMAGES = (
    "on Fashion-MNIST (3,000 steps) at 100x, SGD with momentum 0.9 ended 2.9 points behind dense "
    "training, SGD without 0.2"
)
_ON_TRANSLATION = (
    "in translation (800 steps) at 25x, Adam with beta_1 0.9 ended 21 points behind dense "
    "training, with beta_1 0 2.7"
)
_MEASURED = {
    "momentum": _ON_IMAGES,
    "beta_1": _ON_TRANSLATION,
    "adam_beta_1": _ON_TRANSLATION,
}


def first_moment(optimizer: keras.optimizers.Optimizer) -> dict[str, float]:
    """The settings by which an optimizer keeps a mean or a sum of gradients; those that do.

    Empty for one that answers each gradient at once.
    """
    settings = {name: getattr(optimizer, name, None) for name in _MEASURED}
    return {name: value for name, value in settings.items() if value}


def warn_of_loss(optimizer: keras.optimizers.Optimizer, tensors: Sequence[TensorLayout]) -> None:
    """Says in the log what such an optimizer costs, where ratios are above a ramp's first one."""
    ratio = max((tensor.compression_ratio for tensor in tensors), default=1)
    kept = first_moment(optimizer)
    if not kept or ratio <= WARMUP_RATIO:
        return
    logging.warning(
        "tf_scalecom: %s(%s) at a compression ratio of %s is likely to lose accuracy: %s. Write "
        "tf_scalecom.recipe(optimizer, steps=...), with the steps of the whole training, in place "
        "of ScaleComOptimizer(optimizer); docs/recipe.md says what it changes and why.",
        type(optimizer).__name__,
        ", ".join(f"{name}={value:g}" for name, value in kept.items()),
        f"{ratio:g}",
        _MEASURED[next(iter(kept))],
    )
