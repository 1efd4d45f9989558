"""The per-layer rule for `compression_ratio="auto"` (ScaleCom paper, section 4).

A weight that is used at many output positions of a sample has a gradient that sums many terms and
stands less compression. The rule grades a variable by its multiply-accumulates per weight and
sample, which is the number of positions at which it is used: height x width of a convolution's
output, the sequence length for a dense layer applied at each position, 1 for one applied once.
"""

import gc
import math
from collections.abc import Sequence

import keras

from tf_scalecom.compat.keras_objects import (
    is_convolution,
    own_trainable_variables,
    shapes_built_for,
)

# (positions up to which the ratio holds, ratio), in rising order.
RULE = ((128, 400), (196, 50), (math.inf, 25))


def ratio_for_positions(positions: int) -> int:
    """The rule's compression ratio for a weight used at this many positions of a sample."""
    return next(ratio for limit, ratio in RULE if positions <= limit)


def auto_ratios(variables: Sequence[keras.Variable], paths: Sequence[str]) -> list[int]:
    """Ratios of the variables of a built model; the first convolution's kernel gets 1.

    Args:
        variables: trainable variables, in the model's order.
        paths: their labels, for messages.

    Raises:
        ValueError: a variable's layer is unknown, or was not built for a fixed input shape.
    """
    owners = _owners(variables)
    first_convolution = next(
        (i for i, v in enumerate(variables) if is_convolution(owners.get(id(v)))), None
    )
    ratios = []
    for i, (variable, path) in enumerate(zip(variables, paths, strict=True)):
        layer = owners.get(id(variable))
        if i == first_convolution or len(variable.shape) < 2:
            ratios.append(1)  # Vectors (biases, scales) are too small to be worth a rule.
            continue
        ratios.append(ratio_for_positions(_positions(layer, path)))
    return ratios


def _owners(variables) -> dict[int, keras.layers.Layer]:
    """Maps id(variable) to the layer that applies it to a sample.

    An optimizer is handed variables, and neither they nor the call lead back to their layers; the
    live objects of the process do. Done once, at build.
    """
    layers = [o for o in gc.get_objects() if isinstance(o, keras.layers.Layer)]
    owners = {id(v): layer for layer in layers for v in own_trainable_variables(layer)}
    for layer in layers:
        if isinstance(layer, keras.layers.RNN):  # A cell sees one position, its layer them all.
            owners.update((id(v), layer) for v in layer.trainable_variables)
        if isinstance(layer, keras.layers.MultiHeadAttention) and layer.built:
            # Its last layer sees heads, not positions; there are as many of these as queries.
            owners.update((id(v), layer) for v in layer.output_dense.trainable_variables)
    return {id(v): owners[id(v)] for v in variables if id(v) in owners}


def _positions(layer, path) -> int:
    shape = None if layer is None else _shape_of_positions(layer)
    if shape is None or None in shape:
        raise ValueError(
            'compression_ratio="auto": expected every weight matrix to belong to a layer built '
            f"for a fixed input shape; received {path} of {layer!r}, used at positions of shape "
            f"{shape}. Give ratios by name instead, as in "
            "ScaleComOptimizer(..., compression_ratio={'.*': 100})."
        )
    return math.prod(shape)


def _shape_of_positions(layer) -> tuple | None:
    """Shape of the positions of a sample at which a layer's weights are used."""
    shapes = shapes_built_for(layer)
    if not shapes:
        return None
    input_shape = tuple(next(iter(shapes.values())))
    if isinstance(layer, keras.layers.Embedding):
        return ()  # A row is used where its word stands, hardly ever twice in a sample.
    if is_convolution(layer):
        output_shape = layer.compute_output_shape(input_shape)
        channels_last = layer.data_format == "channels_last"
        return tuple(output_shape[1:-1] if channels_last else output_shape[2:])
    return tuple(input_shape[1:-1])
