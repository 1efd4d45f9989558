"""The kernels of one replica's step: what they must have, the back ends, and the choice."""

from tf_scalecom.ops.backends import BACKEND_VARIABLE, backend, kernels_for
from tf_scalecom.ops.kernels import Compensated, Gathered, Kernels
from tf_scalecom.ops.words import slices
from tf_scalecom.ops.xla import all_finite

__all__ = [
    "BACKEND_VARIABLE",
    "Compensated",
    "Gathered",
    "Kernels",
    "all_finite",
    "backend",
    "kernels_for",
    "slices",
]
