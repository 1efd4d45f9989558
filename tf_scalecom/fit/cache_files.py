"""Files in which tf.data keeps a dataset's elements: each worker has its own.

Workers that fill one file at the same time fail on its lock, or tear it. Nor do they have the same
to keep: TensorFlow shares out the files that a dataset reads, and so what is behind them. What is
kept for one number of workers is wrong for another.
"""

import tensorflow as tf
from absl import logging

from tf_scalecom.compat import tensorflow_data

# Operation -> which of its inputs names the file.
_FILES = {"CacheDataset": 1, "CacheDatasetV2": 1}
# The state of the process that a dataset uses (generators, lookup tables) stays where it is.
_LEAVE_STATE = 1


def one_per_worker(dataset: tf.data.Dataset, rank: int, num_workers: int) -> tf.data.Dataset:
    """The dataset, with "-worker-RANK-of-NUMBER" after the path of each cache file.

    A cache inside a function of the dataset, as of `interleave`, is not found. Renaming goes
    through a description of the dataset with all data that it holds: gigabytes are refused.

    Raises:
        ValueError: It cannot be renamed.
    """
    paths = sorted(_cache_files(dataset)) if tf.executing_eagerly() else []
    if not paths:
        return dataset
    ending = f"-worker-{rank}-of-{num_workers}"
    variant = tf.data.experimental.to_variant(dataset)
    try:
        graph = tf.compat.v1.GraphDef.FromString(
            tf.raw_ops.DatasetToGraphV2(
                input_dataset=variant, external_state_policy=_LEAVE_STATE
            ).numpy()
        )
        _rename(graph, ending)
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    except (tf.errors.OpError, ValueError) as error:
        raise ValueError(
            f"Expected a cache file for each worker; received {', '.join(paths)}, which cannot be "
            f"renamed by itself ({error}). Write e.g. cache(f'{paths[0]}{ending}') with this "
            "worker's number, or cache() in memory."
        ) from error
    logging.info("tf_scalecom: cache files %s: this worker's own end in %s.", paths, ending)
    # It uses the functions and tables of the one it is made from.
    return tensorflow_data.UnaryUnchangedStructureDataset(dataset, variant)


def _cache_files(dataset):
    found, inputs = set(), [dataset]
    while inputs:
        dataset = inputs.pop()
        inputs += tensorflow_data.inputs(dataset)
        found.add(tensorflow_data.cache_file(dataset))
    return found - {""}  # in memory


def _rename(graph, ending):
    nodes = {node.name: node for node in graph.node}
    for node in graph.node:
        if node.op in _FILES:
            name = nodes[node.input[_FILES[node.op]].partition(":")[0]]
            for i, path in enumerate(name.attr["value"].tensor.string_val):
                name.attr["value"].tensor.string_val[i] = path + ending.encode() if path else path
