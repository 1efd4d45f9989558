"""A denoising diffusion model of clothing, with a moving average of its network's weights."""

import keras
import outcome
import real_data
import tensorflow as tf
from keras import layers, ops

import tf_scalecom as sc

SIZE, EMA = 28, 0.9


class NoiseLevels(layers.Layer):
    """Sines and cosines of a noise variance, at several frequencies."""

    def call(self, x):
        angles = 2 * 3.1416 * ops.exp(ops.linspace(0.0, 4.0, 4)) * x
        return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)


def residual_block(x, filters):
    shortcut = layers.Conv2D(filters, 1)(x)
    x = layers.GroupNormalization(4)(x)
    x = layers.Conv2D(filters, 3, padding="same", activation="swish")(x)
    x = layers.Conv2D(filters, 3, padding="same")(x)
    return layers.Add()([x, shortcut])


def network():
    images, variances = keras.Input((SIZE, SIZE, 1)), keras.Input((1, 1, 1))
    levels = layers.UpSampling2D(SIZE)(NoiseLevels()(variances))
    x = layers.Concatenate()([layers.Conv2D(8, 1)(images), levels])
    skipped = x = residual_block(layers.AveragePooling2D(2)(x), 8)
    x = residual_block(layers.AveragePooling2D(2)(x), 16)
    x = layers.UpSampling2D()(x)
    x = residual_block(layers.Concatenate()([x, skipped]), 8)
    x = layers.Conv2D(1, 3, padding="same")(layers.UpSampling2D()(x))
    return keras.Model([images, variances], x)


class Diffusion(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization(axis=None)
        self.network = network()
        self.ema_network = keras.models.clone_model(self.network)
        self.ema_network.set_weights(self.network.get_weights())
        self.noise_loss_tracker = keras.metrics.Mean(name="noise_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="image_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def diffuse(self, data):
        images, noises, times = data
        images = self.normalizer(images, training=True)
        angles = 0.2 + 1.3 * ops.reshape(times, (-1, 1, 1, 1))
        signal_rates, noise_rates = ops.cos(angles), ops.sin(angles)
        return images, noises, signal_rates, noise_rates

    def denoise(self, network, noisy, signal_rates, noise_rates, training):
        predicted = network([noisy, noise_rates**2], training=training)
        return predicted, (noisy - noise_rates * predicted) / signal_rates

    def losses_of(self, network, data, training):
        images, noises, signal_rates, noise_rates = self.diffuse(data)
        noisy = signal_rates * images + noise_rates * noises
        predicted = self.denoise(network, noisy, signal_rates, noise_rates, training)
        return [
            ops.mean(self.loss(*pair)) for pair in zip((noises, images), predicted, strict=True)
        ]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            noise_loss, image_loss = self.losses_of(self.network, data, training=True)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        for weight, average in zip(self.network.weights, self.ema_network.weights, strict=True):
            average.assign(EMA * average + (1 - EMA) * weight)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        noise_loss, image_loss = self.losses_of(self.ema_network, data, training=False)
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        return {metric.name: metric.result() for metric in self.metrics}


def with_noise(image, seed):
    """A row has its own noise, so that it does not matter which replica draws it."""
    noise = tf.random.stateless_normal([SIZE, SIZE, 1], [seed, 0])
    return image, noise, tf.random.stateless_uniform([], [seed, 1])


def noisy(images):
    rows = tf.data.Dataset.from_tensor_slices(images)
    return tf.data.Dataset.zip(rows, tf.data.Dataset.random(seed=0)).map(with_noise)


keras.utils.set_random_seed(0)
images, _ = real_data.clothing(400)
train = noisy(images[:300]).cache().shuffle(300, seed=0, reshuffle_each_iteration=False).batch(64)
validation = noisy(images[300:]).batch(64)

strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = Diffusion()
    model.normalizer.adapt(images)
    model.compile(
        optimizer=sc.ScaleComOptimizer(
            keras.optimizers.AdamW(2e-3, weight_decay=1e-4), compression_ratio=1
        ),
        loss=keras.losses.mean_absolute_error,
    )

history = model.fit(train, epochs=2, validation_data=validation, verbose=0)
outcome.tell(history.history, model.weights)
