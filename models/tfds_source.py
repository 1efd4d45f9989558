"""Prepared TensorFlow Datasets, read so that each worker reads and decodes only its own part."""

import tensorflow as tf
import tensorflow_datasets as tfds


def read(
    name: str,
    split: str,
    data_dir: str,
    context: tf.distribute.InputContext,
    decoders: dict | None = None,
) -> tf.data.Dataset:
    """The worker's part of a split: the parts of all workers make up the split, each example once.

    Args:
        name: of the data set, with its configuration (`wmt14_translate/de-en`).
        split: `train`, `test[:100]`, ...
        data_dir: where `tfds build` has put it.
        context: says which of how many parts is wanted.
        decoders: as for `tfds.load`.

    Raises:
        ValueError: the data set was not prepared.
    """
    parts = tfds.even_splits(split, context.num_input_pipelines)
    try:
        return tfds.load(
            name,
            split=parts[context.input_pipeline_id],
            data_dir=data_dir,
            decoders=decoders,
            download=False,  # a training job is no place to find out that a licence is missing
        )
    except AssertionError as missing:  # TFDS has no error of its own for it
        raise ValueError(
            f"Expected the data set {name} under {data_dir}; received none that is prepared. "
            f"Prepare it once: tfds build {name} --data_dir {data_dir}"
        ) from missing
