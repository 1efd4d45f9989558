"""The convolutional network on Fashion-MNIST, for `python -m tf_scalecom simulate`."""

import pathlib
import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # what all tasks share

import convnet
import image_data

EVALUATION_BATCH = 1_000


class ImageTask:
    """Classifies images; see `tf_scalecom.simulate.Task` for the meaning of its methods.

    Args:
        data: the images.
        network: takes nothing and returns a model of their logits.
    """

    def __init__(self, data: image_data.ImageData, network: Callable[[], keras.Model]):
        self._data = data
        self._network = network
        self._mean, self._deviation = data.train_images.mean(), data.train_images.std()
        self.train_size = len(data.train_images)

    def build_model(self) -> keras.Model:
        return self._network()

    def batch(self, indices):
        images = self._standardised(self._data.train_images[indices])
        return images, self._data.train_labels[indices].astype(np.int32)

    def loss(self, model, batch):
        images, labels = batch
        return _mean_loss(labels, model(images, training=True))

    def evaluate(self, model) -> dict[str, float]:
        """Accuracy and mean loss over all test images."""
        forward = tf.function(lambda images: model(images, training=False), autograph=False)
        starts = range(0, len(self._data.test_images), EVALUATION_BATCH)
        logits = np.concatenate([
            forward(self._standardised(self._data.test_images[i : i + EVALUATION_BATCH])).numpy()
            for i in starts
        ])
        labels = self._data.test_labels
        return {
            "accuracy": float(np.mean(logits.argmax(axis=1) == labels)),
            "test_loss": float(_mean_loss(labels.astype(np.int32), logits)),
        }

    def _standardised(self, images):
        pixels = images[..., np.newaxis].astype(np.float32)
        return (pixels - np.float32(self._mean)) / np.float32(self._deviation)


def build_task(network: Callable[[], keras.Model] = convnet.build_convnet) -> ImageTask:
    """The task on the data that `train.py` takes, unpacked under `data/`."""
    return ImageTask(image_data.load(pathlib.Path("data")), network)


def _mean_loss(labels, logits):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(losses)
