"""The layers and optimizers of a model, by the attributes that hold them."""

from collections.abc import Iterator

import keras

_HELD = (keras.layers.Layer, keras.optimizers.Optimizer)
_LOOKED_INTO = (*_HELD, dict, list, tuple)


def layers(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """All layers: path, e.g. "encoder.layers.2", "" of the model itself -> layer."""
    return {p: held for p, held in _held(model).items() if isinstance(held, keras.layers.Layer)}


def optimizers(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """All optimizers of a model and of the models in it: path, e.g. "optimizer" -> optimizer.

    Each once; those inside other ones, which hold their variables, are left out.
    """
    found = {
        path: held
        for path, held in _held(model).items()
        if isinstance(held, keras.optimizers.Optimizer)
    }
    inside = {id(inner) for optimizer in found.values() for inner in _inside(optimizer)}
    return {path: optimizer for path, optimizer in found.items() if id(optimizer) not in inside}


def _inside(optimizer) -> Iterator[keras.optimizers.Optimizer]:
    while (optimizer := getattr(optimizer, "inner_optimizer", None)) is not None:
        yield optimizer


def _held(model) -> dict[str, object]:
    """What attributes hold, directly or in lists, tuples and dictionaries, as Keras saves it."""
    held: dict[str, object] = {}
    seen: dict[int, object] = {}  # by id; it keeps them, so that no id comes twice

    def visit(path, value):
        if isinstance(value, _LOOKED_INTO) and id(value) not in seen:
            seen[id(value)] = value
            if isinstance(value, _HELD):
                held[path] = value
            for name, child in _children(value):
                visit(f"{path}.{name}" if path else str(name), child)

    visit("", model)
    return held


def _children(value):
    if isinstance(value, keras.optimizers.Optimizer):
        return []
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    # Not a Sequential's layers once more, in a functional model of its own, nor all in TensorFlow's
    # own lists.
    named = [
        (name, child)
        for name, child in vars(value).items()
        if isinstance(child, _LOOKED_INTO) and not name.startswith(("_functional", "_self_"))
    ]
    # By the name that the user gave rather than in one of Keras's lists of everything.
    named.sort(key=lambda item: (item[0].startswith("_"), item[0]))
    if isinstance(value, keras.Sequential) or hasattr(value, "operations"):  # or functional
        named.insert(0, ("layers", value.layers))
    return named
