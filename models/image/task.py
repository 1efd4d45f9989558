"""The convolutional network on Fashion-MNIST, for `python -m tf_scalecom simulate`."""

import pathlib
import sys
from collections.abc import Callable

import keras
import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # what all tasks share

import classification
import convnet
import image_data
import package_files

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
        return classification.mean_loss(labels, model(images, training=True))

    def evaluate(self, model) -> dict[str, float]:
        """Accuracy and mean loss over all test images."""
        images = self._data.test_images
        batches = (
            self._standardised(images[start : start + EVALUATION_BATCH])
            for start in range(0, len(images), EVALUATION_BATCH)
        )
        labels = self._data.test_labels.astype(np.int32)
        accuracy, loss = classification.evaluate(model, batches, labels)
        return {"accuracy": accuracy, "test_loss": loss}

    def _standardised(self, images):
        pixels = images[..., np.newaxis].astype(np.float32)
        return (pixels - np.float32(self._mean)) / np.float32(self._deviation)


def build_task(network: Callable[[], keras.Model] = convnet.build_convnet) -> ImageTask:
    """The task on the data that `train.py` takes by default, fetched into the project's `data/`."""
    return ImageTask(image_data.load(package_files.DATA_FOLDER), network)
