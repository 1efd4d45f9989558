"""A GAN of clothing: two optimizers, and a train_step for each network against the other."""

import keras
import outcome
import real_data
import tensorflow as tf
from keras import layers, ops

import tf_scalecom as sc

LATENT = 16


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, data):
        real, noise = data["real"], data["noise"]
        ones = ops.ones((ops.shape(real)[0], 1))

        fakes = self.generator(noise[:, 0])
        labels = ops.concatenate([0 * ones, ones])
        labels += 0.05 * ops.concatenate(ops.split(data["label_noise"], 2, axis=1))
        with tf.GradientTape() as tape:
            logits = self.discriminator(ops.concatenate([fakes, real]))
            d_loss = self.loss_fn(labels, logits)
        gradients = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply(gradients, self.discriminator.trainable_weights)

        with tf.GradientTape() as tape:
            logits = self.discriminator(self.generator(noise[:, 1]))
            g_loss = self.loss_fn(ones, logits)
        gradients = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply(gradients, self.generator.trainable_weights)

        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


def discriminator():
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(32, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dense(1),
        ],
        name="discriminator",
    )


def generator():
    return keras.Sequential(
        [
            keras.Input((LATENT,)),
            layers.Dense(7 * 7 * 16),
            layers.Reshape((7, 7, 16)),
            layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(1, 5, padding="same", activation="sigmoid"),
        ],
        name="generator",
    )


keras.utils.set_random_seed(0)
images, _ = real_data.clothing(1001)


def with_noise(image, seed):
    """A row has its own noise, so that it does not matter which replica draws it."""
    return {
        "real": image,
        "noise": tf.random.stateless_normal([2, LATENT], [seed, 0]),
        "label_noise": tf.random.stateless_uniform([2], [seed, 1]),
    }


rows = tf.data.Dataset.zip(
    tf.data.Dataset.from_tensor_slices(images), tf.data.Dataset.random(seed=0)
)
data = rows.map(with_noise).shuffle(1001, seed=0, reshuffle_each_iteration=False).batch(64)

strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    gan = GAN(discriminator(), generator())
    gan.compile(
        # SGD here, as Adam's steps would be the same if all gradients were too large by one factor.
        d_optimizer=sc.ScaleComOptimizer(keras.optimizers.SGD(0.02), compression_ratio=1),
        g_optimizer=sc.ScaleComOptimizer(
            keras.optimizers.Adam(1e-3, beta_1=0.5), compression_ratio=1
        ),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
    )

history = gan.fit(data, epochs=2, verbose=0)
outcome.tell(history.history, gan.weights)
