"""CIFAR-10 and ImageNet as TensorFlow Datasets, augmented as the papers that use them do."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf
import tensorflow_datasets as tfds
import tfds_source

CIFAR_MEAN, CIFAR_DEVIATION = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
IMAGENET_MEAN, IMAGENET_DEVIATION = (123.68, 116.78, 103.94), (58.40, 57.12, 57.38)
IMAGENET_SIZE = 224
SHUFFLE_BUFFER = 16_384


@dataclasses.dataclass(frozen=True)
class TfdsImages:
    """A data set, and how its examples become what a network takes.

    Attributes:
        name: as TFDS has it.
        image_shape: (height, width, channels) of what the network takes.
        num_classes: labels are 0 to this, exclusive.
        test_split: the held-out examples with labels.
        decoders: as for `tfds.load`.
        augment: (stored image, int32 [2] seed) -> float32 image.
        prepare: stored image -> float32 image, without chance.
        data_dir: where `tfds build` has put it.
    """

    name: str
    image_shape: tuple[int, int, int]
    num_classes: int
    test_split: str
    decoders: dict | None
    augment: Callable
    prepare: Callable
    data_dir: str

    def training(
        self, strategy: tf.distribute.Strategy, batch_per_worker: int, seed: int
    ) -> tf.distribute.DistributedDataset:
        """Endless batches; each worker reads, decodes and augments its own part only."""

        def pipeline(context):
            examples = self._read("train", context).shuffle(
                SHUFFLE_BUFFER, seed=seed, reshuffle_each_iteration=True
            )
            # A pair of random numbers for each example: the same whatever runs in parallel.
            seeds = tf.data.Dataset.random(seed + context.input_pipeline_id).batch(2)
            examples = tf.data.Dataset.zip((examples.repeat(), seeds)).map(
                lambda example, numbers: (
                    self.augment(example["image"], tf.cast(numbers, tf.int32)),
                    tf.cast(example["label"], tf.int32),
                ),
                num_parallel_calls=tf.data.AUTOTUNE,
            )
            return examples.batch(batch_per_worker).prefetch(tf.data.AUTOTUNE)

        return strategy.distribute_datasets_from_function(pipeline)

    def test(
        self, strategy: tf.distribute.Strategy, batch_per_worker: int
    ) -> tf.distribute.DistributedDataset:
        """Every held-out example once, on one of the workers."""

        def pipeline(context):
            examples = self._read(self.test_split, context).map(
                lambda example: (
                    self.prepare(example["image"]),
                    tf.cast(example["label"], tf.int32),
                ),
                num_parallel_calls=tf.data.AUTOTUNE,
            )
            return examples.batch(batch_per_worker).prefetch(tf.data.AUTOTUNE)

        return strategy.distribute_datasets_from_function(pipeline)

    def _read(self, split, context):
        return tfds_source.read(self.name, split, self.data_dir, context, self.decoders)


def cifar10(data_dir: str) -> TfdsImages:
    """60,000 photographs of 32 x 32; training images shifted by up to 4 pixels and mirrored."""

    def prepare(image):
        return (tf.cast(image, tf.float32) - CIFAR_MEAN) / CIFAR_DEVIATION

    def augment(image, seed):
        image = tf.pad(prepare(image), [(4, 4), (4, 4), (0, 0)])
        image = tf.image.stateless_random_crop(image, (32, 32, 3), seed)
        return tf.image.stateless_random_flip_left_right(image, seed)

    return TfdsImages("cifar10", (32, 32, 3), 10, "test", None, augment, prepare, data_dir)


def imagenet(data_dir: str) -> TfdsImages:
    """1.28 million photographs; training crops of 8 to 100 % of the area, mirrored, 224 x 224."""
    size = IMAGENET_SIZE

    def scaled(image):
        # Bicubic on the crop: the edges of an image are no part of it.
        image = tf.image.resize(image, (size, size), method="bicubic")
        return tf.ensure_shape((image - IMAGENET_MEAN) / IMAGENET_DEVIATION, (size, size, 3))

    def augment(jpeg, seed):
        shape = tf.image.extract_jpeg_shape(jpeg)
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed=seed,
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
        )
        window = tf.concat([begin[:2], extent[:2]], axis=0)
        crop = tf.image.decode_and_crop_jpeg(jpeg, window, channels=3)
        return tf.image.stateless_random_flip_left_right(scaled(crop), seed)

    def prepare(jpeg):
        # The middle square of 7/8 of the shorter side: 224 of 256 pixels.
        shape = tf.image.extract_jpeg_shape(jpeg)[:2]
        side = tf.cast(tf.cast(tf.reduce_min(shape), tf.float32) * 0.875, tf.int32)
        window = tf.concat([(shape - side) // 2, [side, side]], axis=0)
        return scaled(tf.image.decode_and_crop_jpeg(jpeg, window, channels=3))

    return TfdsImages(
        "imagenet2012",
        (size, size, 3),
        1_000,
        "validation",
        {"image": tfds.decode.SkipDecoding()},  # a crop is decoded faster than the whole
        augment,
        prepare,
        data_dir,
    )
