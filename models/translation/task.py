"""A small Transformer on package descriptions, for `python -m tf_scalecom simulate`."""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # what all tasks share

import package_files
import transformer
import translation_data

VOCABULARY, LENGTH = 4_000, 32
EVALUATION_BATCH = 100


class TranslationTask:
    """Translates; see `tf_scalecom.simulate.Task` for the meaning of its methods.

    Without dropout, whose random state would make the simulator compute learner by learner.
    """

    def __init__(self, data: translation_data.TextData):
        self._data = data
        self._loss = transformer.SmoothedCrossentropy()
        self.train_size = len(data.train)

    def build_model(self) -> keras.Model:
        return transformer.build_transformer(
            self._data.vocabulary.size,
            num_layers=2,
            width=96,
            heads=4,
            feed_forward=384,
            dropout=0.0,
            source_length=LENGTH,
            target_length=LENGTH,
        )

    def batch(self, indices):
        return self._data.train[indices]

    def loss(self, model, batch):
        inputs, labels, weights = translation_data.example(batch[:, 0], batch[:, 1])
        return self._loss(labels, model(inputs, training=True), sample_weight=weights)

    def evaluate(self, model) -> dict[str, float]:
        """Share of the held-out tokens that are told right, and their mean -log p."""
        count = tf.function(lambda pairs: _count(model, pairs), autograph=False)
        starts = range(0, len(self._data.test), EVALUATION_BATCH)
        counts = [count(self._data.test[i : i + EVALUATION_BATCH]).numpy() for i in starts]
        right, negative_log_p, tokens = np.sum(counts, axis=0)
        return {
            "token_accuracy": float(right / tokens),
            "test_loss": float(negative_log_p / tokens),
        }


def _count(model, pairs):
    """float32 [tokens told right, their sum of -log p, tokens] of int32 (pairs, 2, length)."""
    inputs, labels, weights = translation_data.example(pairs[:, 0], pairs[:, 1])
    logits = model(inputs, training=False)
    negative_log_p = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    right = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.float32)
    return tf.stack([tf.reduce_sum(each * weights) for each in (right, negative_log_p, 1.0)])


def build_task() -> TranslationTask:
    """The task on the data that `train.py` takes by default, fetched into the project's `data/`."""
    data = translation_data.load(package_files.DATA_FOLDER, VOCABULARY, LENGTH)
    return TranslationTask(data)
