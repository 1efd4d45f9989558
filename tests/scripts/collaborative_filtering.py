"""Users and films as vectors, whose product tells how much the one likes the other."""

import keras
import numpy as np
import outcome
from keras import layers, ops

import tf_scalecom as sc

USERS, FILMS, SIZE = 300, 200, 16


class Recommender(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        vectors = {
            "embeddings_initializer": "he_normal",
            "embeddings_regularizer": keras.regularizers.L2(1e-6),
        }
        self.user_vectors = layers.Embedding(USERS, SIZE, **vectors)
        self.user_biases = layers.Embedding(USERS, 1)
        self.film_vectors = layers.Embedding(FILMS, SIZE, **vectors)
        self.film_biases = layers.Embedding(FILMS, 1)

    def call(self, inputs):
        users, films = inputs[:, 0], inputs[:, 1]
        likes = ops.sum(self.user_vectors(users) * self.film_vectors(films), axis=1, keepdims=True)
        return ops.sigmoid(likes + self.user_biases(users) + self.film_biases(films))


rng = np.random.default_rng(0)
tastes, kinds = rng.normal(size=(USERS, 3)), rng.normal(size=(FILMS, 3))
pairs = np.stack([rng.integers(0, USERS, 9000), rng.integers(0, FILMS, 9000)], axis=1)
likes = np.sum(tastes[pairs[:, 0]] * kinds[pairs[:, 1]], axis=1)
stars = np.clip(np.round(3 + likes), 1, 5)
ratings = ((stars - 1) / 4).astype("float32")
train, validation = slice(0, 7937), slice(7937, None)

keras.utils.set_random_seed(0)
strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = Recommender()
    model.compile(
        optimizer=sc.ScaleComOptimizer(keras.optimizers.Adam(1e-2), compression_ratio=1),
        loss=keras.losses.BinaryCrossentropy(),
        metrics=[keras.metrics.RootMeanSquaredError(name="rmse")],
    )

history = model.fit(
    pairs[train],
    ratings[train],
    batch_size=128,
    epochs=4,
    validation_data=(pairs[validation], ratings[validation]),
    verbose=0,
)
outcome.tell(history.history, model.weights)
