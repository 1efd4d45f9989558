"""A U-Net finds clothing, and of which kind it is, pixel by pixel; a PyDataset reads the pairs."""

import keras
import numpy as np
import outcome
import real_data
from keras import layers

import tf_scalecom as sc


class NoisyPhotos(keras.utils.PyDataset):
    """Photos on a noisy background; the class of a pixel is 0 there, else 1 or 2."""

    def __init__(self, images, labels, batch_size=32, **kwargs):
        super().__init__(**kwargs)
        self.images, self.labels, self.batch_size = images, labels, batch_size

    def __len__(self):
        return -(-len(self.images) // self.batch_size)

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        images, labels = self.images[rows], self.labels[rows]
        noise = np.random.default_rng(index).uniform(0, 0.3, images.shape)
        is_shoe = np.isin(labels, [5, 7, 9])[:, None, None, None]
        classes = np.where(images > 0.1, 1 + is_shoe, 0)
        return np.maximum(images, noise).astype("float32"), classes.astype("int32")


def convolve(x, filters):
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return layers.Activation("relu")(layers.BatchNormalization()(x))


def unet():
    inputs = keras.Input((28, 28, 1))
    x, skipped = inputs, []
    for filters in 8, 16:
        x = convolve(x, filters)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = convolve(x, 16)
    for filters in 16, 8:
        x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same")(x)
        x = convolve(layers.Concatenate()([x, skipped.pop()]), filters)
    return keras.Model(inputs, layers.Conv2D(3, 1, activation="softmax")(x))


keras.utils.set_random_seed(0)
images, labels = real_data.clothing(400)
train = NoisyPhotos(images[:300], labels[:300], workers=2, max_queue_size=4)
validation = NoisyPhotos(images[300:], labels[300:])

strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = unet()
    model.compile(
        optimizer=sc.ScaleComOptimizer(keras.optimizers.Adam(3e-3), compression_ratio=1),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )

history = model.fit(train, epochs=3, validation_data=validation, verbose=0)
# Moving averages of BatchNormalization are each worker's own.
outcome.tell(history.history, model.trainable_variables)
