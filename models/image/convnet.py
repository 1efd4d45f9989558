"""A small convolutional network: 1,634,570 parameters on 28 x 28 grey images of ten classes."""

from collections.abc import Sequence

import keras


def build_convnet(
    image_shape: tuple[int, int, int] = (28, 28, 1),
    num_classes: int = 10,
    filters: Sequence[int] = (16, 32, 64),
    units: int = 512,
) -> keras.Model:
    """3 x 3 convolutions and two dense layers; returns logits of shape (batch, num_classes).

    98 % of the weights sit in the first dense layer, where they cost little computing and much
    communication: the case gradient compression is for. No normalisation layers, hence few small
    tensors, which travel uncompressed.

    Args:
        image_shape: height, width and channels.
        num_classes: outputs.
        filters: of each convolution; the first two halve height and width after them.
        units: of the first dense layer.
    """
    layers = keras.layers

    def convolution(width):
        return layers.Conv2D(
            width, 3, padding="same", activation="relu", kernel_initializer="he_normal"
        )

    first, second, *others = filters
    return keras.Sequential(
        [
            layers.Input(image_shape),
            convolution(first),
            layers.MaxPool2D(),
            convolution(second),
            layers.MaxPool2D(),
            *map(convolution, others),
            layers.Flatten(),
            layers.Dense(units, activation="relu", kernel_initializer="he_normal"),
            layers.Dense(num_classes),
        ],
        name="convnet",
    )
