"""Variables that travel as two matrices of a low rank: the plan, and what it puts on the wire."""

import dataclasses
import functools
import math
from collections.abc import Sequence

from tf_scalecom.wire.layout import MIN_COMPRESSED_ELEMENTS, TensorLayout
from tf_scalecom.wire.report import CompressionReport, CompressionRow, bytes_ratio, ring_factor


@dataclasses.dataclass(frozen=True)
class LowRankPlan:
    """Which variables travel as two matrices of a rank.

    A convolution's kernel is a matrix of one column per filter. Small ones, and whatever the rank
    would not make smaller, travel dense.

    Attributes:
        tensors: path, shape and dtype of each variable.
        rank: 0 compresses nothing.
    """

    tensors: tuple[TensorLayout, ...]
    rank: int

    @functools.cached_property
    def compressed(self) -> tuple[int, ...]:
        """Positions of the variables that do not travel dense."""
        return tuple(i for i, t in enumerate(self.tensors) if self.rank and self._pays(t))

    def subset(self, positions: Sequence[int]) -> "LowRankPlan":
        """The plan for some of the variables."""
        return dataclasses.replace(self, tensors=tuple(self.tensors[i] for i in positions))

    def without_compression(self) -> "LowRankPlan":
        """The plan under which all of them travel dense."""
        return dataclasses.replace(self, rank=0)

    def values(self, position: int) -> int:
        """Numbers that are summed for a variable."""
        tensor = self.tensors[position]
        return self._factors(tensor) if position in self.compressed else tensor.elements

    def _pays(self, tensor):
        return (
            len(tensor.shape) >= 2
            and tensor.elements >= MIN_COMPRESSED_ELEMENTS
            and self._factors(tensor) < tensor.elements
        )

    def _factors(self, tensor):
        rows, columns = matrix_shape(tensor)
        return self.rank * (rows + columns)


def low_rank_report(plan: LowRankPlan, num_replicas: int) -> CompressionReport:
    """Counts 4 bytes of each value of the factors, and the other elements as they are, by a ring.

    Args:
        plan: the plan.
        num_replicas: n, >= 1.
    """
    ring = ring_factor(num_replicas)
    rows = []
    for i, tensor in enumerate(plan.tensors):
        kept = plan.values(i)
        dense = 4 * tensor.elements * ring
        sent = 4 * kept * ring if i in plan.compressed else tensor.payload("float32") * ring
        rows.append(
            CompressionRow(
                tensor.path, tensor.shape, tensor.elements, kept, bytes_ratio(dense, sent),
                dense, sent,
            )
        )  # fmt: skip
    return CompressionReport(
        rows=tuple(rows),
        num_replicas=num_replicas,
        bytes_dense=sum(row.bytes_dense for row in rows),
        bytes_sent=sum(row.bytes_sent for row in rows),
    )


def matrix_shape(tensor: TensorLayout) -> tuple[int, int]:
    """Rows and columns of a variable."""
    columns = tensor.shape[-1]
    return math.prod(tensor.shape) // columns, columns
