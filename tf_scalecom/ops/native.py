"""The kernels of CLT-k in the compiled op library; same functions as `xla`, same results.

`update` works in place on the residual's buffer, so a step must not read the variable by any other
operation: that would share the buffer, and force a copy.
"""

import functools
import pathlib

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils

from tf_scalecom.ops import built
from tf_scalecom.ops.xla import limits
from tf_scalecom.wire.layout import Layout

name = "native"

LIBRARY = pathlib.Path(__file__).with_name("libscalecom_ops.so")
# Largest `chunk_keep` of the chunk-wise kernels.
MAX_CHUNK_KEEP = 16
# Exact selection counts elements in 32 bits.
MAX_EXACT_ELEMENTS = 2**32 - 1


@functools.cache
def library():
    """The loaded operations.

    Raises:
        OSError: the library is missing, or was built for another TensorFlow.
        tf.errors.OpError: it cannot be loaded.
    """
    if not LIBRARY.exists():
        raise OSError(f"{LIBRARY.name} was not built with the package")
    built.check_tensorflow(LIBRARY)
    loaded = tf.load_op_library(str(LIBRARY))
    for operation in ("ScalecomSelect", "ScalecomAnyNonfinite", "ScalecomGather"):
        # Reading a residual needs no place in the sequence of its writes other than after them.
        auto_control_deps_utils.register_read_only_resource_op(operation)
    return loaded


def supports(layout: Layout) -> bool:
    """Whether the kernels cover every compressed tensor of a layout."""
    tensors = (layout.tensors[i] for i in layout.compressed)
    return all(
        t.elements <= MAX_EXACT_ELEMENTS if t.is_exact else t.chunk_keep <= MAX_CHUNK_KEEP
        for t in tensors
    )


def select(gradients, residuals, layout):
    """As `xla.select`."""
    tensors = (layout.tensors[i] for i in layout.compressed)
    return library().scalecom_select(
        gradients,
        _handles(residuals),
        selection=["exact" if t.is_exact else "chunk" for t in tensors],
        **_attributes(layout),
    )


def any_nonfinite(gradients, residuals=()):
    """As `xla.any_nonfinite`."""
    return library().scalecom_any_nonfinite(gradients, _handles(residuals))


def gather(gradients, residuals, words, nonfinite, layout, limit):
    """As `xla.gather`."""
    return library().scalecom_gather(
        gradients,
        _handles(residuals),
        words,
        nonfinite,
        wire=layout.value_dtype,
        limits=limits(layout, limit),
        **_attributes(layout),
    )


def update(gradients, residuals, words, reduced, finite, layout, limit):
    """As `xla.update`."""
    return library().scalecom_update(
        gradients,
        _handles(residuals),
        words,
        reduced,
        finite,
        limits=limits(layout, limit),
        beta=layout.beta,
        **_attributes(layout),
    )


def _handles(residuals):
    return [residual.handle for residual in residuals]


def _attributes(layout):
    tensors = [layout.tensors[i] for i in layout.compressed]
    return {
        "chunk_size": [t.chunk_size for t in tensors],
        "chunk_keep": [t.chunk_keep for t in tensors],
        # Ignored where the chunks divide the tensor, but checked.
        "tail_keep": [t.tail_keep or 1 for t in tensors],
        "offset_bytes": [t.offset_bytes for t in tensors],
    }
