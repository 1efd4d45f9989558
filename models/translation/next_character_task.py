"""A small network that tells the next character: a task of millions of examples and short steps."""

import pathlib
import sys

import keras
import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # what all tasks share

import debian_descriptions
import package_files

CONTEXT = 16
# Printable ASCII, and one for all others.
_FIRST, CHARACTERS = 32, 96
TEST_EXAMPLES, EVALUATION_BATCH = 20_000, 2_000


class NextCharacterTask:
    """Tells a character from those before it; see `tf_scalecom.simulate.Task` for its methods.

    Args:
        train, test: sentences. Each of their characters that has enough before it is an example;
            of the test's every so many, about `TEST_EXAMPLES`.
    """

    def __init__(self, train: list[str], test: list[str]):
        self._train, self._test = _encoded(train), _encoded(test)
        self.train_size = len(self._train) - CONTEXT
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build_model(self) -> keras.Model:
        """A model of 46,816 weights."""
        return keras.Sequential(
            [
                keras.Input((CONTEXT,), dtype="int32"),
                keras.layers.Embedding(CHARACTERS, 16),
                keras.layers.Flatten(),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(CHARACTERS),
            ]
        )

    def batch(self, indices):
        return _windows(self._train, indices)

    def loss(self, model, batch):
        return self._loss(batch[:, -1], model(batch[:, :-1], training=True))

    def evaluate(self, model) -> dict[str, float]:
        """Share of the held-out characters that are told right, and their mean -log p."""
        places = len(self._test) - CONTEXT
        starts = np.arange(0, places, max(1, places // TEST_EXAMPLES))
        parts = np.array_split(starts, -(-len(starts) // EVALUATION_BATCH))
        right, negative_log_p = 0.0, 0.0
        for part in parts:
            batch = _windows(self._test, part)
            logits = model(batch[:, :-1], training=False)
            right += np.sum(np.argmax(logits, axis=-1) == batch[:, -1])
            negative_log_p += float(self._loss(batch[:, -1], logits)) * len(part)
        return {
            "character_accuracy": float(right / len(starts)),
            "test_loss": negative_log_p / len(starts),
        }


def _encoded(sentences: list[str]) -> np.ndarray:
    """int32 [characters], of all sentences with an end of line between them."""
    codes = np.frombuffer("\n".join(sentences).encode("utf-32-le"), np.uint32).astype(np.int64)
    codes -= _FIRST
    other = CHARACTERS - 1
    return np.where((codes >= 0) & (codes < other), codes, other).astype(np.int32)


def _windows(characters: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """int32 [start, CONTEXT + 1], the last of which is to be told."""
    return characters[np.asarray(starts)[:, np.newaxis] + np.arange(CONTEXT + 1)]


def build_task() -> NextCharacterTask:
    """The task on the English sentences of the translation data, in the project's `data/`."""
    train, test = debian_descriptions.load(package_files.DATA_FOLDER)
    return NextCharacterTask([english for english, _ in train], [english for english, _ in test])
