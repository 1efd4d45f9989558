"""A variational autoencoder of clothing, with a train_step and trackers of its own."""

import keras
import outcome
import real_data
import tensorflow as tf
from keras import layers, ops

import tf_scalecom as sc

LATENT = 4


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.reconstruction_tracker = keras.metrics.Mean(name="reconstruction")
        self.kl_tracker = keras.metrics.Mean(name="kl")

    @property
    def metrics(self):
        return [self.loss_tracker, self.reconstruction_tracker, self.kl_tracker]

    def train_step(self, data):
        images, epsilon = data
        with tf.GradientTape() as tape:
            mean, log_variance = self.encoder(images, training=True)
            latent = mean + ops.exp(0.5 * log_variance) * epsilon
            decoded = self.decoder(latent, training=True)
            errors = keras.losses.binary_crossentropy(images, decoded)
            reconstruction = ops.mean(ops.sum(errors, axis=(1, 2)))
            kl = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            kl = ops.mean(ops.sum(kl, axis=1))
            loss = reconstruction + kl
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        self.reconstruction_tracker.update_state(reconstruction)
        self.kl_tracker.update_state(kl)
        return {metric.name: metric.result() for metric in self.metrics}


def encoder():
    images = keras.Input((28, 28, 1))
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(images)
    x = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    return keras.Model(images, [layers.Dense(LATENT)(x), layers.Dense(LATENT)(x)])


def decoder():
    return keras.Sequential(
        [
            keras.Input((LATENT,)),
            layers.Dense(7 * 7 * 16, activation="relu"),
            layers.Reshape((7, 7, 16)),
            layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ]
    )


keras.utils.set_random_seed(0)
images, _ = real_data.clothing(1501)
# A row has its own epsilon, so that it does not matter which replica draws it.
rows = tf.data.Dataset.zip(
    tf.data.Dataset.from_tensor_slices(images), tf.data.Dataset.random(seed=0)
)
data = rows.map(lambda image, seed: (image, tf.random.stateless_normal([LATENT], [seed, 0])))
data = data.shuffle(1501, seed=0, reshuffle_each_iteration=False).batch(64)

strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = VAE(encoder(), decoder())
    # SGD, as Adam's steps would be the same if all gradients were too large by one factor.
    model.compile(
        optimizer=sc.ScaleComOptimizer(
            keras.optimizers.SGD(3e-4, momentum=0.9), compression_ratio=1
        )
    )

history = model.fit(data, epochs=2, verbose=0)
outcome.tell(history.history, model.weights)
