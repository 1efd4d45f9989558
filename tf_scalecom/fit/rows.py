"""How many rows a batch has: as many as the first of its tensors, as Keras counts them."""

from collections.abc import Iterable

import tensorflow as tf


def count_rows(batch) -> tf.Tensor | None:
    """Rows of a batch, an int64 scalar; None if nothing in it has rows.

    Args:
        batch: nested structure of one replica's tensors, or of what stands for no tensor.
    """
    for leaf in tf.nest.flatten(batch):
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.nrows()
        if isinstance(leaf, tf.SparseTensor):
            return leaf.dense_shape[0]
        if isinstance(leaf, tf.Tensor) and leaf.shape.rank:
            return tf.shape(leaf, out_type=tf.int64)[0]
    return None


def count_rows_of_optionals(optionals: Iterable[tf.experimental.Optional]) -> tf.Tensor:
    """Rows of all batches of this process together, 0 of one that is not there; an int64 scalar."""

    def rows_of(batch):
        rows = count_rows(batch)
        return tf.constant(0, tf.int64) if rows is None else tf.cast(rows, tf.int64)

    def rows_of_optional(optional):
        return tf.cond(
            optional.has_value(),
            lambda: rows_of(optional.get_value()),
            lambda: tf.constant(0, tf.int64),
        )

    return tf.add_n([rows_of_optional(optional) for optional in optionals])


def static_rows(element_spec) -> int | None:
    """Rows of each batch of a dataset on each device here; None if they are not known or differ."""
    specs = tf.nest.flatten(element_spec, expand_composites=True)
    rows = {spec.shape[0] for spec in specs if isinstance(spec, tf.TensorSpec) and spec.shape.rank}
    return rows.pop() if len(rows) == 1 else None
