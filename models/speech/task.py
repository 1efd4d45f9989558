"""The bidirectional LSTM on the frames of prompts, for `python -m tf_scalecom simulate`."""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # what all tasks share

import blstm
import log_mel
import speech_data

UNITS = BOTTLENECK = 64
EVALUATION_BATCH = 256


class SpeechTask:
    """Tells who speaks in a frame; see `tf_scalecom.simulate.Task` for its methods."""

    def __init__(self, data: speech_data.SpeechData):
        self._data = data
        self.train_size = len(data.train)

    def build_model(self) -> keras.Model:
        return blstm.build_blstm(
            speech_data.FRAMES,
            log_mel.BANDS,
            self._data.num_classes,
            units=UNITS,
            bottleneck=BOTTLENECK,
        )

    def batch(self, indices):
        return self._data.train[indices], self._data.train_labels[indices]

    def loss(self, model, batch):
        windows, labels = batch
        return _mean_loss(labels, model(windows, training=True))

    def evaluate(self, model) -> dict[str, float]:
        """Share of the held-out frames that are told right, and the mean loss."""
        forward = tf.function(lambda windows: model(windows, training=False), autograph=False)
        starts = range(0, len(self._data.test), EVALUATION_BATCH)
        logits = np.concatenate(
            [forward(self._data.test[i : i + EVALUATION_BATCH]).numpy() for i in starts]
        )
        labels = self._data.test_labels
        return {
            "frame_accuracy": float(np.mean(logits.argmax(axis=-1) == labels)),
            "test_loss": float(_mean_loss(labels, logits)),
        }


def build_task() -> SpeechTask:
    """The task on the data that `train.py` takes, fetched into `data/`."""
    return SpeechTask(speech_data.load(pathlib.Path("data"), per_frame=True))


def _mean_loss(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
