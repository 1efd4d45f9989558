"""Sentence pairs as batches: tokens in, the next token as label, padding of weight 0."""

import dataclasses
import pathlib
from collections.abc import Sequence

import debian_descriptions
import numpy as np
import subwords
import tensorflow as tf
import transformer

Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class TextData:
    """Pairs of a source and a target sentence that fit a length, as padded tokens.

    Attributes:
        name: of the data set.
        vocabulary: of both languages.
        train: int32 (pairs, 2, length): source and target, each with its `END`.
        test: the same of held-out pairs.
        references: target sentences of `test`.
    """

    name: str
    vocabulary: subwords.Subwords
    train: np.ndarray
    test: np.ndarray
    references: list[str]


def load(data_dir: pathlib.Path, vocabulary_size: int, length: int) -> TextData:
    """Debian's package descriptions, English to German.

    Args:
        data_dir: where they are, or will be put, with the vocabulary.
        vocabulary_size: tokens.
        length: pairs with more tokens on either side, `END` included, are left out.

    Raises:
        package_files.PackageUnavailableError: they could not be fetched.
    """
    train, test = debian_descriptions.load(data_dir)
    vocabulary = subwords.learn(
        (sentence for pair in train for sentence in pair),
        vocabulary_size,
        data_dir / f"{debian_descriptions.FOLDER}-{vocabulary_size}.model",
    )
    encoded_train, _ = _fitting(encode(vocabulary, train), train, length)
    encoded_test, fitting_test = _fitting(encode(vocabulary, test), test, length)
    return TextData(
        "Debian descriptions, English to German",
        vocabulary,
        padded(encoded_train, length),
        padded(encoded_test, length),
        [german for _, german in fitting_test],
    )


def encode(vocabulary: subwords.Subwords, pairs: Sequence[Pair]) -> list[tuple]:
    """Tokens of both sides of each pair, each with its `END`."""
    sides = [vocabulary.encode(side) for side in zip(*pairs, strict=True)]
    return [
        ([*source, transformer.END], [*target, transformer.END])
        for source, target in zip(*sides, strict=True)
    ]


def padded(encoded: Sequence[tuple], length: int) -> np.ndarray:
    """int32 (pairs, 2, length)."""
    tokens = np.full((len(encoded), 2, length), transformer.PADDING, np.int32)
    for row, sides in zip(tokens, encoded, strict=True):
        for place, side in zip(row, sides, strict=True):
            place[: len(side)] = side
    return tokens


def training_dataset(data: TextData, global_batch_size: int, seed: int) -> tf.data.Dataset:
    """Endless batches of the whole cluster; a strategy hands each worker its share of every batch.

    The order depends on `seed` alone, so that the workers' shares do not overlap.
    """
    indices = tf.data.Dataset.range(len(data.train)).shuffle(len(data.train), seed=seed).repeat()
    tokens = tf.constant(data.train)
    batches = indices.batch(global_batch_size).map(lambda rows: tf.gather(tokens, rows))
    return batches.map(lambda rows: example(rows[:, 0], rows[:, 1])).prefetch(4)


def test_dataset(data: TextData, global_batch_size: int) -> tf.data.Dataset:
    """Every held-out pair once."""
    batches = tf.data.Dataset.from_tensor_slices(data.test).batch(global_batch_size)
    return batches.map(lambda rows: example(rows[:, 0], rows[:, 1]))


def example(source, target):
    """(inputs, labels, weights) of a batch of padded tokens.

    The decoder is given what stands before the token it must tell: the target one place later,
    behind `BEGIN`.
    """
    source, target = tf.convert_to_tensor(source), tf.convert_to_tensor(target)
    begin = tf.fill([tf.shape(target)[0], 1], transformer.BEGIN)
    inputs = {"source": source, "target": tf.concat([begin, target[:, :-1]], axis=1)}
    return inputs, target, tf.cast(target != transformer.PADDING, tf.float32)


def _fitting(encoded, pairs, length):
    kept = [
        (tokens, pair)
        for tokens, pair in zip(encoded, pairs, strict=True)
        if max(map(len, tokens)) <= length
    ]
    return [tokens for tokens, _ in kept], [pair for _, pair in kept]
