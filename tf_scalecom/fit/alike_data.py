"""Whether all workers are given the same data, of which each then takes its part.

A seed that workers share does not order what comes from elsewhere: a generator that draws from
`np.random.default_rng()`, the order of a set, an array of which each worker was given another part.
What tells is the first batch.
"""

import hashlib
import warnings
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_scalecom.compat import tensorflow_data
from tf_scalecom.workers.workers import Workers

_READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
# Not RandomShuffle, which draws an order.
_DRAWS = (
    "RandomUniform",
    "RandomStandardNormal",
    "RandomGamma",
    "RandomPoisson",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "Multinomial",
    "StatelessRandom",
    "StatelessTruncatedNormal",
    "StatelessMultinomial",
    "StatefulUniform",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "RngReadAndSkip",
    "SampleDistortedBoundingBox",
)
_POLICY = tf.data.experimental.AutoShardPolicy


def warn_unless_alike(batch, workers: Workers, call: str) -> bool:
    """Warns on all workers if they are given different batches; a collective call.

    Args:
        batch: what Keras takes for one; None without data.
        workers: all of them.
        call: what the batch is given to, e.g. "fit".

    Returns:
        Whether all have one.
    """
    digests = workers.gather(None if batch is None else _digest(batch), "first batches")
    others = [
        name for name, digest in zip(workers.names, digests, strict=True) if digest != digests[0]
    ]
    if others:  # on all, so that they all fail where warnings are errors
        warnings.warn(
            f"{call}: expected the same first batch on all workers, as each takes its part of "
            f"every batch, received another one than on {workers.names[0]} on "
            f"{', '.join(others)}. If their orders differ, some samples are used twice and others "
            "not at all: give an order that is drawn at random a seed, np.random.default_rng(1), "
            "dataset.shuffle(n, seed=1) or keras.utils.set_random_seed(1); sort what comes from a "
            "set or os.listdir. If each worker has data of its own, pass "
            "strategy.distribute_datasets_from_function(...). If it is an augmentation alone that "
            "differs, all is well.",
            stacklevel=2,
        )
    return None not in digests


def all_read_all(dataset: tf.data.Dataset) -> bool:
    """Whether TensorFlow shares a dataset out by batches, not by files, nor not at all."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy == _POLICY.DATA or (policy == _POLICY.AUTO and not _reads_files(dataset))


def in_one_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, of which all workers read all, in an order that threads do not decide on."""
    if dataset.options().deterministic is not False or not all_read_all(dataset):
        return dataset
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def draws_values(dataset: tf.data.Dataset) -> bool:
    """Whether a function of a dataset draws numbers at random, as for an augmentation.

    Each worker may draw its own: that its batches differ says nothing of their order.
    """
    return any(name.startswith(_DRAWS) for name in _operations(dataset))


def _reads_files(dataset):
    """Whether a dataset is made of files, as TensorFlow sees it (auto_shard.cc)."""
    return any(name.startswith(_READERS) for name in _operations(dataset))


def _operations(dataset) -> Iterator[str]:
    """Names of what a dataset is made of: datasets, and operations in their functions."""
    yield type(dataset).__name__
    for function in tensorflow_data.functions(dataset):
        graph = function.function.graph.as_graph_def()
        yield from (node.op for node in graph.node)
        yield from (node.op for f in graph.library.function for node in f.node_def)
    for source in tensorflow_data.inputs(dataset):
        yield from _operations(source)


def _digest(batch):
    # Of the targets, if there are some: inputs may be augmented, by each worker in its own way.
    if isinstance(batch, (tuple, list)) and len(batch) > 1 and batch[1] is not None:
        batch = batch[1]
    digest = hashlib.sha256()
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        if isinstance(leaf, tf.Tensor) and leaf.dtype in (tf.variant, tf.resource):
            continue
        array = np.asarray(leaf)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return digest.hexdigest()
