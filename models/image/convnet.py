"""A small convolutional network: 1,634,570 parameters on 28 x 28 grey images of ten classes."""

import keras


def build_convnet(
    image_shape: tuple[int, int, int] = (28, 28, 1), num_classes: int = 10
) -> keras.Model:
    """Three 3 x 3 convolutions and two dense layers; returns logits of shape (batch, num_classes).

    98 % of the weights sit in the first dense layer, where they cost little computing and much
    communication: the case gradient compression is for. No normalisation layers, hence few small
    tensors, which travel uncompressed.
    """
    layers = keras.layers

    def convolution(filters):
        return layers.Conv2D(
            filters, 3, padding="same", activation="relu", kernel_initializer="he_normal"
        )

    return keras.Sequential(
        [
            layers.Input(image_shape),
            convolution(16),
            layers.MaxPool2D(),
            convolution(32),
            layers.MaxPool2D(),
            convolution(64),
            layers.Flatten(),
            layers.Dense(512, activation="relu", kernel_initializer="he_normal"),
            layers.Dense(num_classes),
        ],
        name="convnet",
    )
