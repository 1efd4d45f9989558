"""A small task for `simulate`: a two-layer network learns the classes that a linear map gives."""

import keras
import numpy as np
import tensorflow as tf

FEATURES, CLASSES = 40, 5


class LinearClasses:
    """2,000 training and 500 test points; `layers` go between the two dense ones."""

    train_size = 2_000

    def __init__(self, *layers):
        self._layers = layers
        rng = np.random.default_rng(0)
        self._points = rng.normal(size=(2_500, FEATURES)).astype(np.float32)
        self._labels = np.argmax(self._points @ rng.normal(size=(FEATURES, CLASSES)), axis=1)

    def build_model(self):
        layers = keras.layers
        return keras.Sequential(
            [
                layers.Input((FEATURES,)),
                layers.Dense(60, activation="relu"),
                *(layer() for layer in self._layers),
                layers.Dense(CLASSES),
            ]
        )

    def batch(self, indices):
        return self._points[indices], self._labels[indices]

    def loss(self, model, batch):
        points, labels = batch
        return _mean_loss(labels, model(points, training=True))

    def evaluate(self, model):
        logits = model(self._points[self.train_size :], training=False)
        labels = self._labels[self.train_size :]
        return {
            "accuracy": float(np.mean(np.argmax(logits, axis=1) == labels)),
            "test_loss": float(_mean_loss(labels, logits)),
        }


def build_task():
    return LinearClasses()


def _mean_loss(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
