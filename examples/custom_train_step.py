"""`fit` with a `train_step` of one's own: here it mixes pairs of images, and their labels.

python examples/custom_train_step.py
python -m tf_scalecom run -n 2 examples/custom_train_step.py
"""

import fashion
import keras
import tensorflow as tf

import tf_scalecom as sc


class MixedUp(keras.Model):
    """Learns from mixtures of images (Zhang et al., 2018, https://arxiv.org/abs/1710.09412)."""

    def train_step(self, data):
        images, labels = data
        share = tf.random.uniform([tf.shape(images)[0], 1, 1, 1])
        images = share * images + (1 - share) * images[::-1]
        labels = share[:, :, 0, 0] * labels + (1 - share[:, :, 0, 0]) * labels[::-1]
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            loss = self.compute_loss(y=labels, y_pred=logits)
            scaled = self.optimizer.scale_loss(loss)  # for mixed_float16; else the loss itself
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, logits)
        return self.get_metrics_result()


strategy = sc.MultiWorkerMirroredStrategy()
is_chief = not strategy.cluster_resolver.task_id
keras.utils.set_random_seed(0)
(images, labels), (test_images, test_labels) = fashion.load()
labels, test_labels = map(keras.utils.to_categorical, (labels, test_labels))

with strategy.scope():
    inputs = keras.Input((28, 28, 1))
    x = keras.layers.Conv2D(16, 3, strides=2, activation="relu")(inputs)
    x = keras.layers.Conv2D(32, 3, strides=2, activation="relu")(x)
    x = keras.layers.Dense(64, activation="relu")(keras.layers.Flatten()(x))
    model = MixedUp(inputs, keras.layers.Dense(10)(x))
    model.compile(
        optimizer=sc.ScaleComOptimizer(keras.optimizers.SGD(0.1)),
        loss=keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(images, labels, batch_size=64, epochs=2, verbose=2 if is_chief else 0)
_, accuracy = model.evaluate(test_images, test_labels, verbose=0)  # on all workers
if is_chief:
    print(f"test accuracy {accuracy:.3f}")
    print(model.optimizer.compression_report())
