"""A small causal Transformer learns to write Python's manual, word by word."""

import keras
import numpy as np
import outcome
import real_data
from keras import layers, ops

import tf_scalecom as sc

VOCABULARY, LENGTH, WIDTH = 2000, 24, 32


class TokenAndPosition(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tokens = layers.Embedding(VOCABULARY, WIDTH, mask_zero=True)
        self.positions = layers.Embedding(LENGTH, WIDTH)

    def compute_mask(self, inputs, previous=None):
        return self.tokens.compute_mask(inputs)

    def call(self, inputs):
        return self.tokens(inputs) + self.positions(ops.arange(LENGTH))


class Block(layers.Layer):
    def __init__(self, heads=2, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.attention = layers.MultiHeadAttention(heads, WIDTH // heads)
        self.feed_forward = keras.Sequential(
            [layers.Dense(2 * WIDTH, activation="gelu"), layers.Dense(WIDTH)]
        )
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]

    def build(self, shape):
        self.attention.build(shape, shape)
        self.feed_forward.build(shape)
        for norm in self.norms:
            norm.build(shape)

    def call(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y, use_causal_mask=True)
        return x + self.feed_forward(self.norms[1](x))


keras.utils.set_random_seed(0)
texts, _ = real_data.paragraphs("compound", "specialnames", "types")
vectorize = layers.TextVectorization(VOCABULARY, output_sequence_length=LENGTH + 1)
vectorize.adapt(texts)
tokens = np.asarray(vectorize(texts))
inputs, targets = tokens[:, :-1], tokens[:, 1:]

strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    words = keras.Input((LENGTH,), dtype="int32")
    x = Block()(TokenAndPosition()(words))
    model = keras.Model(words, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))
    model.compile(
        optimizer=sc.ScaleComOptimizer(keras.optimizers.Adam(1e-3), compression_ratio=1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )

history = model.fit(inputs, targets, batch_size=64, epochs=2, validation_split=0.1, verbose=0)
outcome.tell(history.history, model.weights)
