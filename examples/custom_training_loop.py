"""A training loop of one's own, in this process alone or on many workers.

python examples/custom_training_loop.py
python -m tf_scalecom run -n 2 examples/custom_training_loop.py
"""

import fashion
import keras
import numpy as np
import tensorflow as tf

import tf_scalecom as sc

GLOBAL_BATCH = 64

strategy = sc.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(0)
train, (test_images, test_labels) = fashion.load()
batches = tf.data.Dataset.from_tensor_slices(train).shuffle(12_000, seed=0).batch(GLOBAL_BATCH)
batches = strategy.experimental_distribute_dataset(batches)  # each worker takes its part

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build(model.trainable_variables)


def replica_step(images, labels):
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, model(images, training=True), from_logits=True
        )
        # By the batch of all replicas: the optimizer sums their gradients.
        loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    return loss


@tf.function
def train_step(images, labels):
    losses = strategy.run(replica_step, args=(images, labels))
    return strategy.reduce("SUM", losses, axis=None)


for epoch in range(2):
    losses = [train_step(images, labels).numpy() for images, labels in batches]
    accuracy = np.mean(model.predict(test_images, verbose=0).argmax(axis=-1) == test_labels)
    if not strategy.cluster_resolver.task_id:  # the chief, or alone
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, test accuracy {accuracy:.3f}")
        print(optimizer.compression_report())
