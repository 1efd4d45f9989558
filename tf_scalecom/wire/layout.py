"""What travels and how: the plan that every replica must agree on before the first exchange.

A `Layout` is plain Python (no tensors). It is computed once from shapes, dtypes and
hyper-parameters, and says for each variable whether its gradient travels dense or as CLT-k, how
many elements of it are kept, and how many bytes that puts on the wire.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

from tf_scalecom.wire.dtypes import DTYPES, dtype_of
from tf_scalecom.wire.selection import SELECTIONS

# Below this a tensor's chunks are too few for selection to save anything worth its latency.
MIN_COMPRESSED_ELEMENTS = 1_000


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """How one variable's gradient travels.

    Attributes:
        path: label for people; unique within a layout, not an identity across processes.
        shape: shape of the variable.
        dtype: name of the gradient's dtype.
        compression_ratio: elements / kept elements as asked for; 1 means dense.
        selection: rule by which elements of a chunk are kept, one of `SELECTIONS`. That of a
            chunk-wise selection with a single chunk is "exact".
        chunk_size: elements in a full chunk (the last one may be shorter).
        chunk_keep: elements kept of a full chunk.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    compression_ratio: float = 1.0
    selection: str = "chunk"
    chunk_size: int = 1
    chunk_keep: int = 1

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def full_chunks(self) -> int:
        return self.elements // self.chunk_size

    @property
    def tail_keep(self) -> int:
        """Elements kept of the short last chunk; 0 when the chunks divide the tensor."""
        tail = self.elements % self.chunk_size
        if not tail:
            return 0
        return min(self.chunk_keep, max(1, round(tail / self.compression_ratio)))

    @property
    def is_dense(self) -> bool:
        return self.compression_ratio == 1

    @property
    def kept(self) -> int:
        if self.is_dense:
            return self.elements
        return self.full_chunks * self.chunk_keep + self.tail_keep

    @property
    def offset_bytes(self) -> int:
        """Bytes that one offset inside a chunk takes on the wire; 0 for a dense tensor."""
        if self.is_dense:
            return 0
        return 1 if self.chunk_size <= 1 << 8 else 2 if self.chunk_size <= 1 << 16 else 4

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the whole gradient."""
        return self.elements * DTYPES[self.dtype].bytes

    def payload(self, value_dtype: str) -> int:
        """Bytes of values and offsets."""
        if self.is_dense:
            return self.gradient_bytes
        return self.kept * (DTYPES[value_dtype].bytes + self.offset_bytes)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The plan for a list of variables.

    Attributes:
        tensors: one `TensorLayout` per variable, in the order of `build(variables)`.
        beta: low-pass filter of the residual, in (0, 1]; 1 is plain error feedback.
        value_dtype: dtype of the kept values on the wire.
    """

    tensors: tuple[TensorLayout, ...]
    beta: float = 1.0
    value_dtype: str = "float32"

    @functools.cached_property
    def compressed(self) -> tuple[int, ...]:
        """Positions in `tensors` of those that travel as CLT-k."""
        return tuple(i for i, t in enumerate(self.tensors) if not t.is_dense)

    @functools.cached_property
    def dense(self) -> tuple[int, ...]:
        """Positions in `tensors` of those that travel dense."""
        return tuple(i for i, t in enumerate(self.tensors) if t.is_dense)

    @property
    def kept(self) -> int:
        """Values that the compressed tensors send."""
        return sum(self.tensors[i].kept for i in self.compressed)

    @property
    def in_memory(self) -> "Layout":
        """The plan as kernels have it: what travels with a scale is float32 until then."""
        if not DTYPES[self.value_dtype].is_scaled:
            return self
        return dataclasses.replace(self, value_dtype="float32")

    @functools.cached_property
    def offset_groups(self) -> dict[int, tuple[int, ...]]:
        """Bytes per offset -> places in `compressed` of the tensors with such offsets."""
        widths = [self.tensors[i].offset_bytes for i in self.compressed]
        return {
            width: tuple(place for place, w in enumerate(widths) if w == width)
            for width in sorted(set(widths))
        }

    @property
    def offset_words(self) -> int:
        """32-bit words that the offsets take: each group of equal width fills whole words."""
        return sum(
            -(-width * sum(self.tensors[self.compressed[i]].kept for i in places) // 4)
            for width, places in self.offset_groups.items()
        )

    def buckets(self, least_bytes: float | None) -> list[tuple[int, ...]]:
        """Positions of the tensors that are exchanged together.

        In the order in which a backward pass computes gradients, which is from the last variable to
        the first, so that a bucket can leave while the next one is computed.

        Args:
            least_bytes: payload of a bucket, at least; None for one bucket of all tensors.
        """
        buckets: list[list[int]] = [[]]
        size = 0
        for position in reversed(range(len(self.tensors))):
            if least_bytes is not None and size >= least_bytes:
                buckets.append([])
                size = 0
            buckets[-1].append(position)
            size += self.tensors[position].payload(self.value_dtype)
        if least_bytes is not None and len(buckets) > 1 and size < least_bytes:
            rest = buckets.pop()
            buckets[-1] += rest
        return [tuple(sorted(bucket)) for bucket in buckets]

    def subset(self, positions: Sequence[int]) -> "Layout":
        """The plan for some of the variables: those that have a gradient in this step."""
        return dataclasses.replace(self, tensors=tuple(self.tensors[i] for i in positions))

    def without_compression(self) -> "Layout":
        """The plan under which all of them travel dense."""
        dense = (dataclasses.replace(t, compression_ratio=1.0) for t in self.tensors)
        return dataclasses.replace(self, tensors=tuple(dense))


def tensor_layout(
    path: str,
    shape: Sequence[int],
    dtype: str,
    compression_ratio: float,
    selection: str = "chunk",
    chunk_keep: int = 1,
) -> TensorLayout:
    """Plans one variable.

    Args:
        path: label of the variable.
        shape: its shape.
        dtype: name of its gradient's dtype.
        compression_ratio: elements / kept elements, >= 1.
        selection: one of `SELECTIONS`.
        chunk_keep: elements kept per chunk; not used by every selection.

    Returns:
        The plan; dense for ratio 1, for small or non-float tensors, and where rounding would keep
        every element.

    Raises:
        ValueError: nothing is known of the dtype.
    """
    dense = TensorLayout(path, tuple(shape), dtype)
    compressible = dtype_of(path, dtype).compressible
    if compression_ratio == 1 or dense.elements < MIN_COMPRESSED_ELEMENTS or not compressible:
        return dense
    chunks = SELECTIONS[selection](dense.elements, compression_ratio, chunk_keep)
    planned = dataclasses.replace(
        dense,
        compression_ratio=float(compression_ratio),
        selection=chunks.selection,
        chunk_size=chunks.size,
        chunk_keep=chunks.keep,
    )
    return planned if planned.kept < planned.elements else dense


def unique_paths(paths: Sequence[str]) -> list[str]:
    """Labels made unique: a path seen before gets the suffix #2, #3, ..."""
    seen: dict[str, int] = {}
    unique = []
    for path in paths:
        seen[path] = seen.get(path, 0) + 1
        unique.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return unique
