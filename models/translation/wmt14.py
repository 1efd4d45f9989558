"""WMT 2014 English-German from TensorFlow Datasets: batches of about as many tokens."""

import itertools
import pathlib

import numpy as np
import subwords
import tensorflow as tf
import tfds_source
import translation_data

NAME = "wmt14_translate/de-en"
VOCABULARY_PAIRS = 1_000_000  # of the training pairs, to learn the vocabulary from
ALONE = tf.distribute.InputContext()
ENCODED_AT_ONCE = 10_000
# Sentences are padded to the next of these lengths, so a step is traced for so many shapes.
LENGTHS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128)


def load_vocabulary(data_dir: str, vocabulary_size: int) -> subwords.Subwords:
    """The common vocabulary, learned from the first million training pairs, once."""

    def sentences():
        first = f"train[:{VOCABULARY_PAIRS}]"
        for pair in tfds_source.read(NAME, first, data_dir, ALONE).as_numpy_iterator():
            yield pair["en"].decode()
            yield pair["de"].decode()

    model_file = pathlib.Path(data_dir) / f"wmt14-{vocabulary_size}.model"
    return subwords.learn(sentences(), vocabulary_size, model_file)


def load_test(
    data_dir: str, vocabulary: subwords.Subwords, length: int
) -> translation_data.TextData:
    """newstest2014: all 3,003 pairs, on every worker; sources beyond `length` tokens are cut.

    Its `train` is empty: the training pairs are too many to be held padded.
    """
    pairs = _pairs(tfds_source.read(NAME, "test", data_dir, ALONE))
    encoded = [
        tuple(side[:length] for side in sides)
        for sides in translation_data.encode(vocabulary, pairs)
    ]
    return translation_data.TextData(
        "WMT 2014, English to German",
        vocabulary,
        translation_data.padded([], length),
        translation_data.padded(encoded, length),
        [german for _, german in pairs],
    )


def training_dataset(
    strategy: tf.distribute.Strategy,
    data_dir: str,
    vocabulary: subwords.Subwords,
    tokens_per_worker: int,
    length: int,
    seed: int,
) -> tf.distribute.DistributedDataset:
    """Endless batches of up to `tokens_per_worker` tokens a side, padding included.

    Each worker reads and encodes its own part, which it then holds: about 120 bytes a pair.

    Args:
        strategy: of the workers.
        data_dir: where `tfds build` has put the data.
        vocabulary: of both languages.
        tokens_per_worker: in a batch of one worker.
        length: pairs with more tokens on either side are left out; at most 128.
        seed: of the order.
    """
    lengths = [bound for bound in LENGTHS if bound < length] + [length]

    def pipeline(context):
        source, target = _encoded(tfds_source.read(NAME, "train", data_dir, context), vocabulary)
        # Indices are shuffled instead of pairs, so that a perfect shuffle costs no memory.
        indices = tf.data.Dataset.range(source.nrows()).shuffle(source.nrows(), seed=seed)
        pairs = indices.repeat().map(lambda index: (source[index], target[index]))
        pairs = pairs.filter(lambda s, t: _longer(s, t) <= length)
        batches = pairs.bucket_by_sequence_length(
            _longer,
            bucket_boundaries=[bound + 1 for bound in lengths],
            bucket_batch_sizes=[max(1, tokens_per_worker // bound) for bound in [*lengths, length]],
            pad_to_bucket_boundary=True,
            drop_remainder=True,
        )
        return batches.map(translation_data.example).prefetch(4)

    return strategy.distribute_datasets_from_function(pipeline)


def _longer(source, target):
    return tf.maximum(tf.size(source), tf.size(target))


def _pairs(dataset) -> list[translation_data.Pair]:
    return [(p["en"].decode(), p["de"].decode()) for p in dataset.as_numpy_iterator()]


def _encoded(dataset, vocabulary) -> list[tf.RaggedTensor]:
    """Sources and targets, each ragged int32 (pairs, tokens)."""
    values, lengths = ([], []), ([], [])
    pairs = dataset.as_numpy_iterator()
    while some := list(itertools.islice(pairs, ENCODED_AT_ONCE)):
        texts = [(p["en"].decode(), p["de"].decode()) for p in some]
        sides = zip(*translation_data.encode(vocabulary, texts), strict=True)
        for side, side_values, side_lengths in zip(sides, values, lengths, strict=True):
            side_values.append(np.concatenate(side).astype(np.int32))
            side_lengths += map(len, side)
    return [
        tf.RaggedTensor.from_row_lengths(np.concatenate(side_values), side_lengths)
        for side_values, side_lengths in zip(values, lengths, strict=True)
    ]
