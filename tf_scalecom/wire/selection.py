"""The rules of selection: into what chunks a variable is cut, and how many elements each keeps.

A rule is an entry of `SELECTIONS` here, which says how long chunks are, and one of `ops.xla`, which
says which elements of a chunk are kept.
"""

from collections.abc import Callable
from typing import NamedTuple

# Offsets within a chunk are computed as int32.
MAX_CHUNK_SIZE = 2**31 - 1


class Chunks(NamedTuple):
    """How one variable is cut.

    Attributes:
        selection: name of the rule by which kernels select.
        size: elements in a full chunk (the last one may be shorter).
        keep: elements kept of a full chunk.
    """

    selection: str
    size: int
    keep: int


def _chunk(elements: int, compression_ratio: float, chunk_keep: int) -> Chunks:
    # No longer than the variable, whatever the ratio.
    chunk_keep = min(chunk_keep, elements)
    longest = min(elements, MAX_CHUNK_SIZE)
    size = max(1, round(min(chunk_keep * compression_ratio, longest)))
    keep = min(chunk_keep, max(1, round(size / compression_ratio)))
    # The largest of a single chunk are those of the variable.
    return Chunks("exact" if size == elements else "chunk", size, keep)


def _exact(elements: int, compression_ratio: float, chunk_keep: int) -> Chunks:
    return Chunks("exact", elements, max(1, round(elements / compression_ratio)))


# Choices of `selection` -> (elements of a variable, compression_ratio, chunk_keep) -> its chunks.
SELECTIONS: dict[str, Callable[[int, float, int], Chunks]] = {
    # The `chunk_keep` largest of each chunk of chunk_keep * compression_ratio elements.
    "chunk": _chunk,
    # The largest of the whole variable, which is one chunk; `chunk_keep` is not used.
    "exact": _exact,
}
