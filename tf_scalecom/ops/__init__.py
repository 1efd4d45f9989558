"""The kernels of one replica's step, behind one interface, and the choice between them.

The environment variable TF_SCALECOM_BACKEND says which: "native", the compiled op library; "xla",
plain TensorFlow operations; or "auto", the default: native where it can be loaded and serves the
device and the layout.
"""

import functools
import os
from types import ModuleType

import tensorflow as tf
from absl import logging

from tf_scalecom.ops import built, native, xla
from tf_scalecom.ops.xla import all_finite
from tf_scalecom.wire.layout import Layout

__all__ = ["all_finite", "backend", "kernels_for"]

BACKEND_VARIABLE = "TF_SCALECOM_BACKEND"


def kernels_for(layout: Layout) -> ModuleType:
    """The kernels for a layout: `select`, `any_nonfinite`, `gather` and `update`; see `xla`.

    Raises:
        ValueError: neither kernels know such a layout.
    """
    kernels, _ = backend()
    if kernels.supports(layout):
        return kernels
    if not xla.supports(layout):
        longest = max((layout.tensors[i] for i in layout.compressed), key=lambda t: t.chunk_size)
        raise ValueError(
            "ScaleComOptimizer: expected an exact selection among less than 2^31 elements (native "
            f"kernels: 2^32); received {longest.path} of {longest.elements}. Take "
            'selection="chunk", or split the variable.'
        )
    _log_once(
        f"tf_scalecom: chunk_keep above {native.MAX_CHUNK_KEEP} runs on plain TensorFlow kernels."
    )
    return xla


@functools.cache
def backend() -> tuple[ModuleType, str]:
    """The kernels in use and, in words, why. Decided once per process.

    Raises:
        ValueError: TF_SCALECOM_BACKEND is none of its values.
        RuntimeError: it asks for native kernels, and there are none.
    """
    wanted = os.environ.get(BACKEND_VARIABLE) or "auto"
    if wanted not in ("native", "xla", "auto"):
        raise ValueError(
            f"Expected {BACKEND_VARIABLE} to be native, xla or auto; received {wanted!r}. "
            "Unset it for auto."
        )
    kernels, reason = _choose(wanted)
    logging.info("tf_scalecom: %s kernels: %s.", kernels.name, reason)
    return kernels, reason


def _choose(wanted):
    if wanted == "xla":
        return xla, f"{BACKEND_VARIABLE}=xla"
    if wanted == "auto" and tf.config.list_logical_devices("TPU"):
        return xla, "a TPU runs plain TensorFlow operations only"
    try:
        native.library()
    except (OSError, tf.errors.OpError) as error:
        reason = f"the op library cannot be loaded ({error})"
        if wanted == "native":
            raise RuntimeError(
                f"Expected native kernels, as {BACKEND_VARIABLE}=native asks; received: {reason}. "
                "Reinstall the package where there is a C++ compiler, or unset the variable."
            ) from error
        logging.warning("tf_scalecom: plain TensorFlow kernels: %s.", reason)
        return xla, reason
    if wanted == "auto" and tf.config.list_logical_devices("GPU"):
        problem = built.gpu_problem(built.read(native.LIBRARY), *built.gpu_facts())
        if problem:
            return xla, problem
        return native, "the op library is loaded, and has kernels for the GPUs in sight"
    return native, "the op library is loaded"


@functools.cache
def _log_once(message):
    logging.info(message)
