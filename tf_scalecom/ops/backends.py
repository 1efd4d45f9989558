"""The back ends of kernels, and the choice between them.

The environment variable TF_SCALECOM_BACKEND names one, or is "auto", the default: the first that
suits the devices and can run. What it does not cover runs on the last, the plain kernels.
"""

import functools
import os

from absl import logging

from tf_scalecom.ops import native, xla
from tf_scalecom.ops.kernels import Kernels
from tf_scalecom.wire.layout import Layout

# Fastest first; the last one runs anywhere.
BACKENDS: tuple[Kernels, ...] = (native, xla)

BACKEND_VARIABLE = "TF_SCALECOM_BACKEND"


def kernels_for(layout: Layout) -> Kernels:
    """The kernels for a layout.

    Raises:
        ValueError: no kernels here know such a layout.
    """
    lacks: dict[str, str] = {}
    for kernels in (backend()[0], BACKENDS[-1]):
        missing = kernels.unsupported(layout)
        if missing is None:
            for lack in lacks.values():
                _log_once(f"tf_scalecom: {lack} runs on {kernels.title}.")
            return kernels
        lacks[kernels.title] = missing
    longest = max((layout.tensors[i] for i in layout.compressed), key=lambda t: t.chunk_size)
    raise ValueError(
        "ScaleComOptimizer: expected a plan that some kernels cover, without "
        f"{', '.join(f'{lack} ({title})' for title, lack in lacks.items())}; received "
        f'{longest.path} of {longest.elements}. Take selection="chunk", or split the variable.'
    )


@functools.cache
def backend() -> tuple[Kernels, str]:
    """The kernels in use and, in words, why. Decided once per process.

    Raises:
        ValueError: TF_SCALECOM_BACKEND is none of its values.
        RuntimeError: the kernels that it asks for cannot run here.
    """
    wanted = os.environ.get(BACKEND_VARIABLE) or "auto"
    by_name = {kernels.name: kernels for kernels in BACKENDS}
    if wanted == "auto":
        kernels, reason = _first_that_runs()
    elif wanted in by_name:
        kernels, reason = by_name[wanted], f"{BACKEND_VARIABLE}={wanted}"
        problem = kernels.unavailable()
        if problem:
            raise RuntimeError(
                f"Expected {kernels.title}, as {reason} asks; received: {problem}. Mend that, or "
                "unset the variable."
            )
    else:
        raise ValueError(
            f"Expected {BACKEND_VARIABLE} to be {', '.join(by_name)} or auto; received "
            f"{wanted!r}. Unset it for auto."
        )
    logging.info("tf_scalecom: %s kernels: %s.", kernels.name, reason)
    return kernels, reason


def _first_that_runs() -> tuple[Kernels, str]:
    passed_over, broken = [], []
    for kernels in BACKENDS:
        suits, why = kernels.suits()
        if not suits:
            passed_over.append(why)
        elif problem := kernels.unavailable():
            passed_over.append(problem)
            broken.append(problem)
        else:
            for problem in broken:
                logging.warning("tf_scalecom: %s: %s.", kernels.title, problem)
            return kernels, "; ".join(passed_over) or why
    raise RuntimeError(
        f"Expected kernels that can run here; received: {'; '.join(passed_over)}. Mend one of "
        f"these, or name other kernels in {BACKEND_VARIABLE}."
    )


@functools.cache
def _log_once(message):
    logging.info(message)
