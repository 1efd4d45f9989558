"""The kernels of CLT-k in the compiled op library; see `Kernels`.

Buffers change hands, and nothing is copied: a float32 gradient's holds residual + gradient, then
what of it is unsent, and with `filter_residuals` is the residual's; that one's old buffer is the
dense sum's. Where somebody else still needs a buffer, another is allocated in its place.
"""

import functools
import importlib.metadata
import pathlib

import tensorflow as tf

from tf_scalecom.compat.tensorflow_runtime import register_read_only_resource_op
from tf_scalecom.ops import built
from tf_scalecom.ops.kernels import Compensated, Gathered
from tf_scalecom.ops.xla import limits
from tf_scalecom.wire.layout import Layout, TensorLayout

name = "native"
title = "native kernels"
descends_in_place = True

LIBRARY = pathlib.Path(__file__).with_name("libscalecom_ops.so")
# Largest `chunk_keep` of the chunk-wise kernels.
MAX_CHUNK_KEEP = 16
# Exact selection counts elements in 32 bits.
MAX_EXACT_ELEMENTS = 2**32 - 1
# What the operations take.
GRADIENT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
VALUE_DTYPES = frozenset({"float16", "bfloat16", "float32"})


@functools.cache
def library():
    """The loaded operations.

    Raises:
        OSError: the library is missing, or was built for another TensorFlow.
        tf.errors.OpError: it cannot be loaded.
    """
    if not LIBRARY.exists():
        if installed := _installed_library():
            raise OSError(
                f"expected the installed package, with {installed}; received the one in "
                f"{LIBRARY.parents[2]}, as Python looks there first. Start Python in another "
                "folder, or `pip install --editable` that one"
            )
        raise OSError(
            f"{LIBRARY.name} was not built with the package: reinstall that where there is a C++ "
            "compiler"
        )
    built.check_tensorflow(LIBRARY)
    loaded = tf.load_op_library(str(LIBRARY))
    # Reading a residual needs no place in the sequence of its writes other than after them.
    register_read_only_resource_op("ScalecomCompensate")
    return loaded


def _installed_library() -> pathlib.Path | None:
    """The op library of a package that is installed and not the one that was imported."""
    for distribution in importlib.metadata.distributions(name="tf-scalecom"):
        library = pathlib.Path(str(distribution.locate_file(f"tf_scalecom/ops/{LIBRARY.name}")))
        if library.exists():
            return library
    return None


def suits() -> tuple[bool, str]:
    """See `Kernels`. Of a library that cannot be loaded `unavailable` says so."""
    if tf.config.list_logical_devices("TPU"):
        return False, "a TPU runs plain TensorFlow operations only"
    if not tf.config.list_logical_devices("GPU") or unavailable():
        return True, "the op library is loaded"
    record = built.read(LIBRARY)
    capabilities, driver = built.gpu_facts()
    problem = built.gpu_problem(record, capabilities, driver)
    if problem:
        return False, problem
    codes = sorted({str(record.code_for(capability)) for capability in capabilities})
    return True, f"the op library is loaded, and the GPUs in sight run its {' and '.join(codes)}"


def unavailable() -> str | None:
    """See `Kernels`."""
    try:
        library()
    except (OSError, tf.errors.OpError) as error:
        return f"the op library cannot be loaded ({error})"
    return None


def unsupported(layout: Layout) -> str | None:
    """See `Kernels`."""
    if layout.value_dtype not in VALUE_DTYPES:
        return f"value_dtype={layout.value_dtype!r}"
    tensors = [layout.tensors[i] for i in layout.compressed]
    return next(filter(None, map(_unsupported_tensor, tensors)), None)


def _unsupported_tensor(tensor: TensorLayout) -> str | None:
    if tensor.dtype not in GRADIENT_DTYPES:
        return f"a compressed gradient of {tensor.dtype}"
    if tensor.selection == "chunk":
        keeps_few = tensor.chunk_keep <= MAX_CHUNK_KEEP
        return None if keeps_few else f"chunk_keep above {MAX_CHUNK_KEEP}"
    if tensor.selection == "exact":
        is_counted = tensor.elements <= MAX_EXACT_ELEMENTS
        return None if is_counted else f"exact selection among over {MAX_EXACT_ELEMENTS} elements"
    return f"selection={tensor.selection!r}"


def compensate(gradients, residuals, leads, layout):
    """See `Kernels`."""
    return Compensated(
        *library().scalecom_compensate(
            gradients,
            _handles(residuals),
            leads,
            selection=[layout.tensors[i].selection for i in layout.compressed],
            **_attributes(layout),
        )
    )


def gather(compensated, words, nonfinite, layout, limit):
    """See `Kernels`."""
    return Gathered(
        *library().scalecom_gather(
            compensated,
            words,
            nonfinite,
            wire=layout.value_dtype,
            limits=limits(layout, limit),
            **_attributes(layout),
        )
    )


def filter_residuals(unsent, residuals, finite, layout):
    """See `Kernels`."""
    return library().scalecom_filter(unsent, _handles(residuals), finite, beta=layout.beta)


def scatter(words, reduced, layout, free):
    """See `Kernels`."""
    return library().scalecom_scatter(
        words,
        reduced,
        free,
        Ts=[layout.tensors[i].dtype for i in layout.compressed],
        **_attributes(layout),
    )


def descend(variables, slices, learning_rate):
    """See `Kernels`."""
    library().scalecom_descend(
        _handles(variables),
        [tf.cast(s.indices, tf.int64) for s in slices],
        [s.values for s in slices],
        learning_rate,
    )


def add(tensors, indices, values):
    """See `Kernels`."""
    return library().scalecom_subtract(
        tensors,
        [tf.cast(i, tf.int64) for i in indices],
        [-v for v in values],  # the core subtracts, as it does for `descend`
        tf.constant(1.0),
    )


def _handles(variables):
    return [variable.handle for variable in variables]


def _attributes(layout):
    tensors = [layout.tensors[i] for i in layout.compressed]
    return {
        "chunk_size": [t.chunk_size for t in tensors],
        "chunk_keep": [t.chunk_keep for t in tensors],
        # Ignored where the chunks divide the tensor, but checked.
        "tail_keep": [t.tail_keep or 1 for t in tensors],
        "offset_bytes": [t.offset_bytes for t in tensors],
    }
