"""Twin networks learn which photos show the same kind of clothing, by a loss of one's own."""

import keras
import numpy as np
import outcome
import real_data
from keras import layers, ops

import tf_scalecom as sc


def pairs(images, labels, rng):
    """Of each image one pair with another of its class, and one with one of another class."""
    lefts, rights, unlike = [], [], []
    for index, label in enumerate(labels):
        for same in True, False:
            lefts.append(images[index])
            rights.append(images[rng.choice(np.flatnonzero((labels == label) == same))])
            unlike.append(not same)
    return [np.stack(lefts), np.stack(rights)], np.array(unlike, "float32")[:, None]


def distance(vectors):
    left, right = vectors
    square = ops.sum(ops.square(left - right), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(square, keras.config.epsilon()))


def contrastive_loss(margin):
    def loss(unlike, apart):
        near = ops.square(apart)
        far = ops.square(ops.maximum(margin - apart, 0))
        return ops.mean((1 - unlike) * near + unlike * far)

    return loss


keras.utils.set_random_seed(0)
images, labels = real_data.clothing(701)
rng = np.random.default_rng(0)
train, validation = pairs(images[:600], labels[:600], rng), pairs(images[600:], labels[600:], rng)

strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    tower = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 5, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 5, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(10, activation="tanh"),
        ]
    )
    left, right = keras.Input((28, 28, 1)), keras.Input((28, 28, 1))
    apart = layers.Lambda(distance, output_shape=(1,))([tower(left), tower(right)])
    model = keras.Model([left, right], layers.Dense(1, activation="sigmoid")(apart))
    # SGD, as Adam's steps would be the same if all gradients were too large by one factor.
    model.compile(
        optimizer=sc.ScaleComOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9), compression_ratio=1
        ),
        loss=contrastive_loss(margin=1),
        metrics=["accuracy"],
    )

history = model.fit(*train, validation_data=validation, batch_size=32, epochs=3, verbose=0)
outcome.tell(history.history, model.weights)
