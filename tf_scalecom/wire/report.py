"""What a layout puts on the wire, counted in bytes."""

import dataclasses

from tf_scalecom.base.text_table import text_table
from tf_scalecom.wire.dtypes import DTYPES
from tf_scalecom.wire.layout import Layout, TensorLayout
from tf_scalecom.wire.route import Route


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
        in_place: paths of the variables that are updated where something was sent alone, as the
            optimizer's update is zero elsewhere.
    """

    rows: tuple[CompressionRow, ...]
    num_replicas: int
    bytes_dense: float
    bytes_sent: float
    in_place: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        return bytes_ratio(self.bytes_dense, self.bytes_sent)

    def with_more(self, more: dict[int, float], overhead: float = 0.0) -> "CompressionReport":
        """What is sent when there is more or, below 0, less to send.

        Args:
            more: bytes by position of a row.
            overhead: bytes of no row.
        """
        rows = list(self.rows)
        for i, extra in more.items():
            sent = rows[i].bytes_sent + extra
            ratio = bytes_ratio(rows[i].bytes_dense, sent)
            rows[i] = dataclasses.replace(rows[i], bytes_sent=sent, ratio=ratio)
        total = self.bytes_sent + sum(more.values()) + overhead
        return dataclasses.replace(self, rows=tuple(rows), bytes_sent=total)

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
        table = text_table(header, lines, total, left=2)
        if not self.in_place:
            return table
        return (
            f"{table}\nupdated in place, where something was sent: {len(self.in_place)} variables"
        )


def compression_report(layout: Layout, num_replicas: int, route: Route) -> CompressionReport:
    """Counts the payload of one step by CLT-k, or dense where a layout compresses nothing.

    Args:
        layout: the plan.
        num_replicas: n, >= 1. A ring all-reduce sends 2(n-1)/n of its buffer per worker; a
            broadcast costs every worker (n-1)/n of the offsets, on average over a leader cycle.
        route: how they travel.
    """
    ring = ring_factor(num_replicas)
    offsets = ring / 2 if route.broadcasts else ring
    rows = tuple(_row(t, layout.value_dtype, ring, offsets) for t in layout.tensors)
    overhead = 0.0
    buckets = layout.buckets(route.bucket_bytes) if layout.compressed else ()
    for bucket in map(layout.subset, buckets):
        if bucket.compressed:
            unpadded = sum(t.kept * t.offset_bytes for t in bucket.tensors)
            overhead += (4 * bucket.offset_words - unpadded) * offsets
            values = DTYPES[layout.value_dtype].bytes * bucket.kept
            overhead += (_summed_bytes(bucket, num_replicas, route) - values) * ring
    return CompressionReport(
        rows=rows,
        num_replicas=num_replicas,
        bytes_dense=sum(row.bytes_dense for row in rows),
        bytes_sent=sum(row.bytes_sent for row in rows) + overhead,
    )


def run_of_narrow_values(size: int, dtype: str, num_replicas: int) -> int:
    """Narrow values, of `size` with the flag, that each replica sums for all: whole words."""
    per_word = 4 // DTYPES[dtype].bytes
    return per_word * -(-size // (per_word * num_replicas))


def _summed_bytes(bucket: Layout, num_replicas: int, route: Route) -> int:
    """Of kept values, their flag, and what pads and scales them."""
    size, name = bucket.kept + 1, bucket.value_dtype
    dtype = DTYPES[name]
    scale = 4 * dtype.is_scaled
    if dtype.is_narrow and route.broadcasts:
        run = run_of_narrow_values(size, name, num_replicas)
        return num_replicas * (dtype.bytes * run + scale)
    return dtype.bytes * size + scale


def _row(tensor: TensorLayout, value_dtype: str, ring: float, offsets: float) -> CompressionRow:
    dense = 4 * tensor.elements * ring
    if tensor.is_dense:
        sent = tensor.payload(value_dtype) * ring
    else:
        value_bytes, offset_bytes = DTYPES[value_dtype].bytes, tensor.offset_bytes
        sent = tensor.kept * (value_bytes * ring + offset_bytes * offsets)
    ratio = bytes_ratio(dense, sent)
    return CompressionRow(
        tensor.path, tensor.shape, tensor.elements, tensor.kept, ratio, dense, sent
    )


def ring_factor(num_replicas: int) -> float:
    """What a ring all-reduce sends per worker, over the size of its buffer."""
    return 2 * (num_replicas - 1) / num_replicas


def bytes_ratio(dense: float, sent: float) -> float:
    """dense / sent; 1 where nothing is sent."""
    return dense / sent if sent else 1.0
