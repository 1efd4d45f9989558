"""The convolutional network on Fashion-MNIST, for `python -m tf_scalecom simulate`."""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # what all tasks share

import convnet
import image_data

EVALUATION_BATCH = 1_000


class ImageTask:
    """Classifies images; see `tf_scalecom.simulate.Task` for the meaning of its methods."""

    def __init__(self, data: image_data.ImageData):
        self._data = data
        self._mean, self._deviation = data.train_images.mean(), data.train_images.std()
        self.train_size = len(data.train_images)

    def build_model(self) -> keras.Model:
        return convnet.build_convnet()

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


def build_task() -> ImageTask:
    """The task on the data that `train.py` takes, unpacked under `data/`."""
    return ImageTask(image_data.load(pathlib.Path("data")))


def _mean_loss(labels, logits):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(losses)
