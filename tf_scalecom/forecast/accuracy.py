"""What methods have lost in accuracy where it was measured, on the task that is most like a model.

From docs/data/recipe.csv, which the reports write and a test compares.
"""

from typing import NamedTuple

import keras

from tf_scalecom.compat.keras_objects import layers_of


class Lost(NamedTuple):
    """Points of held-out accuracy that a method lost to dense training.

    Attributes:
        method: its name.
        experiment, arm, dense: of the table.
        points: mean over the seeds.
        standard_error: of that; None of a single seed.
    """

    method: str
    experiment: str
    arm: str
    dense: str
    points: float
    standard_error: float | None


class Task(NamedTuple):
    """What was measured.

    Attributes:
        words: what it is.
        lost: by method.
    """

    words: str
    lost: tuple[Lost, ...]


IMAGES = Task(
    "images, SGD, 3,000 steps of a network of 409,034 weights",
    (
        Lost("100x", "image-4", "recipe, 100x", "dense", 0.10, 0.18),
        Lost("92x bfloat16, owners", "ways-image-4", "owners, 92x", "dense", 0.09, 0.13),
        Lost("PowerSGD rank 2", "image-4", "PowerSGD rank 2", "dense", 0.75, 0.03),
    ),
)
SPEECH = Task(
    "speech, SGD, 1,200 steps of a network of 358,919 weights",
    (
        Lost("100x", "speech", "recipe, 100x", "dense", 0.84, 0.09),
        Lost("92x bfloat16, owners", "ways-speech", "owners, 92x", "dense", 0.65, 0.07),
        Lost("PowerSGD rank 1", "speech", "PowerSGD rank 1", "dense", 3.41, None),
    ),
)
TRANSLATION = Task(
    "translation, Adam, 800 steps of a network of 906,240 weights",
    (
        Lost("100x", "translation", "recipe, 100x", "dense", 2.76, 0.10),
        Lost("92x bfloat16, owners", "ways-translation", "owners, 92x", "dense", 0.69, 0.26),
        Lost("PowerSGD rank 1", "translation", "PowerSGD rank 1, rate 0.002", "dense", 9.68, 0.27),
    ),
)
_OF_TEXT = (
    keras.layers.Embedding,
    keras.layers.MultiHeadAttention,
    keras.layers.GroupQueryAttention,
)
TASKS = (IMAGES, SPEECH, TRANSLATION)


def nearest(model: keras.Model) -> Task:
    """The task whose network is of the same kind as a model: by its layers."""
    layers = layers_of(model)
    if any(isinstance(layer, _OF_TEXT) for layer in layers):
        return TRANSLATION
    if any(isinstance(layer, keras.layers.RNN) for layer in layers):
        return SPEECH
    return IMAGES


def sentence(task: Task) -> str:
    """What the methods lost there, with the caveat."""
    lost = [
        f"{of.method} lost {of.points:.2f}"
        + (f" ± {of.standard_error:.2f}" if of.standard_error else " (one seed)")
        for of in task.lost
    ]
    return (
        f"Accuracy is not predicted. The task measured that is most like yours ({task.words}, as "
        f"sc.recipe trains): {', '.join(lost)} points to dense training. Yours is another: measure "
        "it."
    )
