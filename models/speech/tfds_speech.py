"""Speech Commands and LibriSpeech from TensorFlow Datasets: windows of frames with labels."""

import dataclasses
import pathlib
from collections.abc import Callable

import log_mel
import tensorflow as tf
import tfds_source

RATE = 16_000
WINDOW_SECONDS, HOP_SECONDS = 0.025, 0.010
WINDOWS_SHUFFLED = 10_000
CLIPS_SHUFFLED = 2_000
COMMANDS, COMMAND_SILENCE = 12, 10
COMMAND_FRAMES = 98  # of one second
CHARACTERS = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclasses.dataclass(frozen=True)
class TfdsSpeech:
    """A data set, and how its clips become windows.

    Attributes:
        name: as TFDS has it.
        frames: of a window.
        num_classes: labels are 0 to this, exclusive.
        train_split, test_split: as TFDS has them.
        windows: example -> (float32 (windows, frames, bands), labels (windows, ...)).
        data_dir: where `tfds build` has put it.
    """

    name: str
    frames: int
    num_classes: int
    train_split: str
    test_split: str
    windows: Callable
    data_dir: str

    def training(
        self, strategy: tf.distribute.Strategy, batch_per_worker: int, seed: int
    ) -> tf.distribute.DistributedDataset:
        """Endless batches; each worker reads its own part only."""

        def pipeline(context):
            clips = tfds_source.read(self.name, self.train_split, self.data_dir, context)
            windows = self._windows(clips.shuffle(CLIPS_SHUFFLED, seed=seed))
            windows = windows.shuffle(WINDOWS_SHUFFLED, seed=seed).repeat()
            return windows.batch(batch_per_worker).prefetch(tf.data.AUTOTUNE)

        return strategy.distribute_datasets_from_function(pipeline)

    def test(
        self, strategy: tf.distribute.Strategy, batch_per_worker: int
    ) -> tf.distribute.DistributedDataset:
        """Every held-out window once, on one of the workers."""

        def pipeline(context):
            clips = tfds_source.read(self.name, self.test_split, self.data_dir, context)
            return self._windows(clips).batch(batch_per_worker).prefetch(tf.data.AUTOTUNE)

        return strategy.distribute_datasets_from_function(pipeline)

    def _windows(self, clips):
        return clips.map(self.windows, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def speech_commands(data_dir: str, per_frame: bool) -> TfdsSpeech:
    """Ten words, silence and others, one second each.

    With `per_frame`, frames 35 dB under the loudest have the label of silence, as no word is there.
    """

    def windows(example):
        # Some clips are shorter than a second.
        samples = _samples(example["audio"])[:RATE]
        samples = tf.pad(samples, [[0, RATE - tf.size(samples)]])
        energies = _log_mel(samples)
        label = tf.cast(example["label"], tf.int32)
        if per_frame:
            label = tf.where(log_mel.is_speech(energies), label, COMMAND_SILENCE)
        return log_mel.standardised(energies)[tf.newaxis], label[tf.newaxis]

    return TfdsSpeech(
        "speech_commands", COMMAND_FRAMES, COMMANDS, "train", "test", windows, data_dir
    )


def librispeech(
    data_dir: str, frames: int = 21, alignments: pathlib.Path | None = None
) -> TfdsSpeech:
    """Read books, 1,000 hours; the label of a frame is the acoustic state that is spoken in it.

    Args:
        data_dir: where `tfds build` has put it.
        frames: of a window; windows of an utterance do not overlap.
        alignments: text file of a recogniser's forced alignment, as Kaldi writes it: a line for
            each utterance, its id and the label of each frame of 10 ms. Utterances without a line
            are left out. Without the file, the characters of the text are spread evenly over the
            utterance: the "flat start" from which recognisers are trained.
    """
    num_classes, labels_of = _flat_start() if alignments is None else _aligned(alignments)

    def windows(example):
        features = log_mel.standardised(_log_mel(_samples(example["speech"])))
        labels = labels_of(example, tf.shape(features)[0])
        count = tf.minimum(tf.shape(features)[0], tf.size(labels)) // frames
        features = features[: count * frames]
        labels = labels[: count * frames]
        return (
            tf.reshape(features, (-1, frames, log_mel.BANDS)),
            tf.reshape(labels, (-1, frames)),
        )

    return TfdsSpeech(
        "librispeech",
        frames,
        num_classes,
        "train_clean100+train_clean360+train_other500",
        "dev_clean",
        windows,
        data_dir,
    )


def _samples(integers):
    return tf.cast(integers, tf.float32) / 32_768


def _log_mel(samples):
    return log_mel.log_mel(samples, RATE, WINDOW_SECONDS, HOP_SECONDS)


def _flat_start():
    """Returns (28, function of an example and its number of frames that gives int32 (frames,)).

    What is none of `CHARACTERS` counts as a space.
    """
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(list(CHARACTERS), tf.range(len(CHARACTERS))), 0
    )

    def labels_of(example, frames):
        letters = tf.strings.unicode_split(example["text"], "UTF-8")
        return tf.gather(table.lookup(letters), tf.range(frames) * tf.size(letters) // frames)

    return len(CHARACTERS), labels_of


def _aligned(path):
    """Returns (number of classes, function of an example that looks its labels up)."""
    lines = dict(line.split(maxsplit=1) for line in path.read_text().splitlines() if line.strip())
    num_classes = 1 + max(int(label) for labels in lines.values() for label in labels.split())
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(list(lines), list(lines.values())), ""
    )

    def labels_of(example, frames):
        del frames  # the alignment has its own number of them
        return tf.strings.to_number(tf.strings.split(table.lookup(example["id"])), tf.int32)

    return num_classes, labels_of
