"""The bidirectional LSTM on the frames of prompts, for `python -m tf_scalecom simulate`."""

import pathlib
import sys

import keras

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # what all tasks share

import blstm
import classification
import log_mel
import package_files
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
        return classification.mean_loss(labels, model(windows, training=True))

    def evaluate(self, model) -> dict[str, float]:
        """Share of the held-out frames that are told right, and the mean loss."""
        windows = self._data.test
        batches = (
            windows[start : start + EVALUATION_BATCH]
            for start in range(0, len(windows), EVALUATION_BATCH)
        )
        accuracy, loss = classification.evaluate(model, batches, self._data.test_labels)
        return {"frame_accuracy": accuracy, "test_loss": loss}


def build_task() -> SpeechTask:
    """The task on the data that `train.py` takes by default, fetched into the project's `data/`."""
    return SpeechTask(speech_data.load(package_files.DATA_FOLDER, per_frame=True))
