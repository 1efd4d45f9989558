"""A small convolutional network: 1,634,570 parameters on 28 x 28 grey images of ten classes."""

from collections.abc import Sequence

import keras


def build_convnet(
    image_shape: tuple[int, int, int] = (28, 28, 1),
    num_classes: int = 10,
    filters: Sequence[int] = (16, 32, 64),
    units: int = 512,
    strides: int = 1,
) -> keras.Model:
    """3 x 3 convolutions and two dense layers; returns logits of shape (batch, num_classes).

    98 % of the weights sit in the first dense layer, where they cost little computing and much
    communication: the case gradient compression is for. No normalisation layers, hence few small
    tensors, which travel uncompressed.

    Args:
        image_shape: height, width and channels.
        num_classes: outputs.
        filters: of each convolution; after the first two height and width are halved.
        units: of the first dense layer.
        strides: of the first two convolutions; 2 halves by leaving out instead of by pooling, for
            a quarter of the computing.
    """
    layers = keras.layers

    def convolution(width, step=1):
        return layers.Conv2D(
            width, 3, step, padding="same", activation="relu", kernel_initializer="he_normal"
        )

    def halving(width):
        pooling = [] if strides == 2 else [layers.MaxPool2D()]
        return [convolution(width, strides), *pooling]

    first, second, *others = filters
    return keras.Sequential(
        [
            layers.Input(image_shape),
            *halving(first),
            *halving(second),
            *map(convolution, others),
            layers.Flatten(),
            layers.Dense(units, activation="relu", kernel_initializer="he_normal"),
            layers.Dense(num_classes),
        ],
        name="convnet",
    )
