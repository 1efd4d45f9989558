"""What a layout puts on the wire, counted in bytes."""

import dataclasses

from tf_scalecom.base.text_table import text_table
from tf_scalecom.wire.layout import WIRE_BYTES, Layout, TensorLayout


@dataclasses.dataclass(frozen=True)
class CompressionRow:
    """Traffic of one variable; bytes are per worker and step, averaged over a leader cycle."""

    path: str
    shape: tuple[int, ...]
    elements: int
    kept: int
    ratio: float
    bytes_dense: float
    bytes_sent: float


@dataclasses.dataclass(frozen=True)
class CompressionReport:
    """Traffic of a model at a number of replicas.

    Attributes:
        rows: one `CompressionRow` per variable.
        num_replicas: replicas the bytes were computed for.
        bytes_dense: what a dense float32 ring all-reduce sends per worker and step.
        bytes_sent: what the exchange sends per worker and step, padding and finite flag included.
        ratio: bytes_dense / bytes_sent; 1 where nothing is sent.
    """

    rows: tuple[CompressionRow, ...]
    num_replicas: int
    bytes_dense: float
    bytes_sent: float

    @property
    def ratio(self) -> float:
        return bytes_ratio(self.bytes_dense, self.bytes_sent)

    def __str__(self) -> str:
        header = ("variable", "shape", "elements", "kept", "dense B", "sent B", "ratio")
        lines = [
            (
                row.path,
                "x".join(map(str, row.shape)) or "scalar",
                f"{row.elements:,}",
                f"{row.kept:,}",
                f"{row.bytes_dense:,.0f}",
                f"{row.bytes_sent:,.0f}",
                f"{row.ratio:.1f}",
            )
            for row in self.rows
        ]
        total = (
            f"total, {self.num_replicas} replicas",
            "",
            f"{sum(r.elements for r in self.rows):,}",
            f"{sum(r.kept for r in self.rows):,}",
            f"{self.bytes_dense:,.0f}",
            f"{self.bytes_sent:,.0f}",
            f"{self.ratio:.1f}",
        )
        return text_table(header, lines, total, left=2)


def compression_report(
    layout: Layout, num_replicas: int, broadcasts: bool, bucket_bytes: float | None = None
) -> CompressionReport:
    """Counts the payload of one step.

    Args:
        layout: the plan.
        num_replicas: n, >= 1. A ring all-reduce sends 2(n-1)/n of its buffer per worker.
        broadcasts: whether offsets travel by a real broadcast, which costs every worker (n-1)/n of
            them on average over a leader cycle, or by an all-reduce with zeros on the others.
        bucket_bytes: as in `Layout.buckets`.
    """
    ring = 2 * (num_replicas - 1) / num_replicas
    offsets = ring / 2 if broadcasts else ring
    rows = tuple(_row(t, layout.value_dtype, ring, offsets) for t in layout.tensors)
    overhead = 0.0
    buckets = layout.buckets(bucket_bytes) if layout.compressed else ()
    for bucket in map(layout.subset, buckets):
        if bucket.compressed:
            finite_flag = WIRE_BYTES[layout.value_dtype] * ring
            unpadded = sum(t.kept * t.offset_bytes for t in bucket.tensors)
            overhead += finite_flag + (4 * bucket.offset_words - unpadded) * offsets
    return CompressionReport(
        rows=rows,
        num_replicas=num_replicas,
        bytes_dense=sum(row.bytes_dense for row in rows),
        bytes_sent=sum(row.bytes_sent for row in rows) + overhead,
    )


def _row(tensor: TensorLayout, value_dtype: str, ring: float, offsets: float) -> CompressionRow:
    dense = 4 * tensor.elements * ring
    if tensor.is_dense:
        sent = tensor.payload(value_dtype) * ring
    else:
        value_bytes, offset_bytes = WIRE_BYTES[value_dtype], tensor.offset_bytes
        sent = tensor.kept * (value_bytes * ring + offset_bytes * offsets)
    ratio = bytes_ratio(dense, sent)
    return CompressionRow(
        tensor.path, tensor.shape, tensor.elements, tensor.kept, ratio, dense, sent
    )


def bytes_ratio(dense: float, sent: float) -> float:
    """dense / sent; 1 where nothing is sent."""
    return dense / sent if sent else 1.0
