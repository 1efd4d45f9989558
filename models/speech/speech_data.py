"""Clips as windows of one second with a label for each frame, in tf.data pipelines."""

import dataclasses
import hashlib
import pathlib

import asterisk_prompts
import log_mel
import numpy as np
import tensorflow as tf

FRAMES = 50
WINDOW_SECONDS, HOP_SECONDS = 0.032, 0.020
TEST_SHARE = 5  # one of so many prompts is held out, in all voices
SILENCE = len(asterisk_prompts.PACKAGES)


@dataclasses.dataclass(frozen=True)
class SpeechData:
    """Windows and their labels.

    Attributes:
        name: of the data set.
        num_classes: labels are 0 to this, exclusive.
        train: float32 (windows, frames, bands).
        train_labels: int32 (windows, frames), or (windows,).
        test: as `train`, of held-out prompts.
        test_labels: as `train_labels`.
    """

    name: str
    num_classes: int
    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


def load(data_dir: pathlib.Path, per_frame: bool) -> SpeechData:
    """Asterisk's prompts: who speaks (six voices), and in which frames nobody does.

    Args:
        data_dir: where the recordings are, or will be put.
        per_frame: label each frame with its voice or `SILENCE`; else each window with its voice.

    Raises:
        package_files.PackageUnavailableError: the recordings could not be fetched.
    """
    parts = {"train": ([], []), "test": ([], [])}
    for voice, name, samples in asterisk_prompts.load(data_dir):
        held_out = hashlib.sha256(name.encode()).digest()[0] % TEST_SHARE == 0
        windows, labels = parts["test" if held_out else "train"]
        clip_windows, speech = _windows(samples)
        windows.append(clip_windows)
        if per_frame:
            labels.append(np.where(speech, voice, SILENCE))
        else:
            labels.append(np.full(len(clip_windows), voice))
    train, train_labels, test, test_labels = (
        np.concatenate(arrays) for part in ("train", "test") for arrays in parts[part]
    )
    return SpeechData(
        "Asterisk prompts, " + ("frames" if per_frame else "windows"),
        SILENCE + 1 if per_frame else SILENCE,
        train,
        train_labels.astype(np.int32),
        test,
        test_labels.astype(np.int32),
    )


def _windows(samples):
    """(features (windows, frames, bands), is speech (windows, frames)) of a clip.

    The last second is filled up with silence; a window of mostly silence has nothing to tell.
    """
    energies, features, speech = (part.numpy() for part in _features(samples))
    missing = -len(energies) % FRAMES
    features = np.pad(features, [(0, missing), (0, 0)])
    speech = np.pad(speech, (0, missing)).reshape(-1, FRAMES)
    told = speech.mean(axis=1) > 0.5
    return features.reshape(-1, FRAMES, log_mel.BANDS)[told], speech[told]


@tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
def _features(samples):
    energies = log_mel.log_mel(samples, asterisk_prompts.RATE, WINDOW_SECONDS, HOP_SECONDS)
    return energies, log_mel.standardised(energies), log_mel.is_speech(energies)


def training_dataset(data: SpeechData, global_batch_size: int, seed: int) -> tf.data.Dataset:
    """Endless batches of the whole cluster; a strategy hands each worker its share of every batch.

    The order depends on `seed` alone, so that the workers' shares do not overlap.
    """
    windows, labels = tf.constant(data.train), tf.constant(data.train_labels)
    indices = tf.data.Dataset.range(len(data.train)).shuffle(len(data.train), seed=seed).repeat()
    batches = indices.batch(global_batch_size)
    return batches.map(lambda i: (tf.gather(windows, i), tf.gather(labels, i))).prefetch(4)


def test_dataset(data: SpeechData, global_batch_size: int) -> tf.data.Dataset:
    """Every held-out window once."""
    return tf.data.Dataset.from_tensor_slices((data.test, data.test_labels)).batch(
        global_batch_size
    )
