"""The networks `train.py` can train, by name: each takes (image shape, number of classes)."""

import functools

import convnet
import keras
import resnet


def build_mobilenet_v2(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """MobileNetV2 (Sandler et al., 2018) from Keras, from random weights; returns logits.

    3,504,872 weights without the moving statistics at 1,000 classes.
    """
    return keras.applications.MobileNetV2(
        image_shape, weights=None, classes=num_classes, classifier_activation=None
    )


NETWORKS = {
    "convnet": convnet.build_convnet,
    "resnet18": functools.partial(resnet.build_resnet, 18),
    "resnet34": functools.partial(resnet.build_resnet, 34),
    "resnet50": functools.partial(resnet.build_resnet, 50),
    "cifar_resnet34": functools.partial(resnet.build_cifar_resnet, 34),
    "mobilenet_v2": build_mobilenet_v2,
}
