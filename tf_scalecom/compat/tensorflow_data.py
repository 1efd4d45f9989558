"""Private parts of tf.data. Looked at in TensorFlow 2.20 and 2.21."""

from typing import Any

import tensorflow as tf

from tf_scalecom.compat.declared import members, symbol

members(
    tf.data.Dataset,
    {
        "_inputs": "the only way upstream: cache files, what reads files, what draws numbers",
        "_functions": "what a dataset's functions do",
    },
)
_CacheDataset: Any = symbol(
    "tensorflow.python.data.ops.cache_op.CacheDataset", "each worker needs a file of its own"
)
members(_CacheDataset, {"_filename": "the file that workers would share"})
UnaryUnchangedStructureDataset: Any = symbol(
    "tensorflow.python.data.ops.dataset_ops.UnaryUnchangedStructureDataset",
    "makes a dataset of a rewritten graph that keeps the functions of the old one alive",
)
to_tensors: Any = symbol(
    "tensorflow.python.data.util.structure.to_tensor_list", "calls a dataset's function"
)
from_tensors: Any = symbol("tensorflow.python.data.util.structure.from_tensor_list", "the same")
random_seeds: Any = symbol(
    "tensorflow.python.data.util.random_seed", "where each dataset finds the function below"
)
members(
    random_seeds,
    {"get_seed": "replaced: datasets without a seed shuffle alike on all workers"},
)
_StructuredFunctionWrapper: Any = symbol(
    "tensorflow.python.data.ops.structured_function.StructuredFunctionWrapper",
    "what `_functions()` returns",
)
members(
    _StructuredFunctionWrapper,
    {"function": "its graph, and to call it", "output_structure": "what it returns"},
)


def inputs(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The datasets that one is made from."""
    return dataset._inputs()


def functions(dataset: tf.data.Dataset) -> list:
    """The functions of a dataset's own, each with `function` and `output_structure`."""
    return dataset._functions()


def cache_file(dataset: tf.data.Dataset) -> str:
    """The file of a `cache(file)`; "" in memory, and of other datasets."""
    return dataset._filename.numpy().decode() if isinstance(dataset, _CacheDataset) else ""
