"""Residual networks (He et al., 2016): for ImageNet of 18, 34 and 50 layers, for CIFAR of 34.

Written here because `keras.applications` has no ResNet-18 or -34, and its ResNet-50 has biases in
front of batch normalisation and the stride in another place: other weights than those of the paper.
"""

import keras

layers = keras.layers

# Blocks of each stage.
BASIC = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
BOTTLENECK = {50: (3, 4, 6, 3)}


def build_resnet(depth: int, image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """The ImageNet form; returns logits of shape (batch, num_classes).

    Weights without the moving statistics at 1,000 classes: ResNet-18 has 11,689,512, ResNet-34
    21,797,672, ResNet-50 25,557,032.

    Args:
        depth: 18, 34 or 50. In blocks of 50 the 3 x 3 convolution has the stride ("v1.5").
        image_shape: (height, width, channels).
        num_classes: outputs.
    """
    images = layers.Input(image_shape)
    x = _normalised_convolution(images, 64, kernel=7, stride=2, activation="relu")
    x = layers.MaxPool2D(3, strides=2, padding="same")(x)
    return _stages(images, x, depth, num_classes, name=f"resnet{depth}")


def build_cifar_resnet(
    depth: int, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    """The same stages behind a 3 x 3 convolution of stride 1, for images of 32 x 32.

    ResNet-34 has 21,282,122 weights without the moving statistics at ten classes.
    """
    images = layers.Input(image_shape)
    x = _normalised_convolution(images, 64, kernel=3, stride=1, activation="relu")
    return _stages(images, x, depth, num_classes, name=f"cifar_resnet{depth}")


def _stages(images, x, depth, num_classes, name):
    block, repeats = (_basic, BASIC) if depth in BASIC else (_bottleneck, BOTTLENECK)
    for stage, blocks in enumerate(repeats[depth]):
        for number in range(blocks):
            x = block(x, 64 * 2**stage, stride=2 if stage and not number else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(num_classes, name="logits")(x), name=name)


def _basic(x, filters, stride):
    y = _normalised_convolution(x, filters, 3, stride, activation="relu")
    y = _normalised_convolution(y, filters, 3, 1, last=True)
    return _joined(x, y, filters, stride)


def _bottleneck(x, filters, stride):
    y = _normalised_convolution(x, filters, 1, 1, activation="relu")
    y = _normalised_convolution(y, filters, 3, stride, activation="relu")
    y = _normalised_convolution(y, 4 * filters, 1, 1, last=True)
    return _joined(x, y, 4 * filters, stride)


def _joined(x, y, filters, stride):
    """relu(shortcut + residual branch); a 1 x 1 convolution where their shapes differ."""
    if stride > 1 or x.shape[-1] != filters:
        x = _normalised_convolution(x, filters, 1, stride)
    return layers.ReLU()(layers.Add()([x, y]))


def _normalised_convolution(x, filters, kernel, stride, activation=None, last=False):
    """Convolution without a bias, batch normalisation, activation.

    The last normalisation of a branch starts at 0, so that each block starts as its shortcut
    (Goyal et al., 2017): it is what lets large batches start.
    """
    x = layers.Conv2D(
        filters,
        kernel,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
    )(x)
    x = layers.BatchNormalization(
        momentum=0.9, epsilon=1e-5, gamma_initializer="zeros" if last else "ones"
    )(x)
    return layers.Activation(activation)(x) if activation else x
