"""What the replicas' shares of a layout put on the wire, where each of them chooses in one.

The chunks of each compressed variable are cut into as many runs of equal length as there are
replicas; the last run may be short, or empty, and travels padded.
"""

import dataclasses

from tf_scalecom.wire.dtypes import DTYPES
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.report import CompressionReport, compression_report
from tf_scalecom.wire.route import Route

# Of the values that are handed to a share's owner.
HANDED_DTYPE = "bfloat16"


def share_layout(layout: Layout, count: int) -> Layout:
    """The plan of one of `count` shares: the compressed variables' runs, as vectors."""

    def share(tensor):
        chunks = -(-tensor.elements // tensor.chunk_size)
        return dataclasses.replace(tensor, shape=(-(-chunks // count) * tensor.chunk_size,))

    return dataclasses.replace(
        layout, tensors=tuple(share(layout.tensors[i]) for i in layout.compressed)
    )


def message_words(share: Layout) -> int:
    """32-bit words of what one replica hands to a share's owner: offsets, then values."""
    return share.offset_words + -(-DTYPES[HANDED_DTYPE].bytes * share.kept // 4)


def shares_report(layout: Layout, num_replicas: int, route: Route) -> CompressionReport:
    """Counts as `compression_report` does, where the offsets of all shares go to all replicas."""
    others = num_replicas - 1
    times = 1 if route.broadcasts else 2  # by a sum of all, with zeros on the others
    broadcast, gathered = -times * others / num_replicas, times * others
    more, overhead = {}, 0.0
    for positions, bucket, share in _buckets(layout, num_replicas, route):
        for i, tensor in zip(positions, share.tensors, strict=True):
            kept = gathered * tensor.kept + broadcast * layout.tensors[i].kept
            more[i] = kept * tensor.offset_bytes
        overhead += gathered * _padding(share) + broadcast * _padding(bucket)
    return compression_report(layout, num_replicas, route).with_more(more, overhead)


def owners_report(layout: Layout, num_replicas: int, route: Route) -> CompressionReport:
    """Counts as `shares_report` does, and what is handed to the shares' owners."""
    others = num_replicas - 1
    # Without collectives all messages of all to all are summed.
    times = others if route.broadcasts else 2 * num_replicas * others
    more, overhead = {}, 0.0
    for positions, _, share in _buckets(layout, num_replicas, route):
        handed = 0
        for i, tensor in zip(positions, share.tensors, strict=True):
            of_variable = tensor.kept * (DTYPES[HANDED_DTYPE].bytes + tensor.offset_bytes)
            more[i] = times * of_variable
            handed += of_variable
        overhead += times * (4 * message_words(share) - handed)
    return shares_report(layout, num_replicas, route).with_more(more, overhead)


def _buckets(layout, num_replicas, route):
    """Of each bucket the positions of what is compressed, its plan, and that of a share."""
    for positions in layout.buckets(route.bucket_bytes):
        bucket = layout.subset(positions)
        if bucket.compressed:
            compressed = [positions[i] for i in bucket.compressed]
            yield compressed, bucket, share_layout(bucket, num_replicas)


def _padding(layout) -> int:
    """Bytes of words that are no offset's."""
    offsets = (layout.tensors[i] for i in layout.compressed)
    return 4 * layout.offset_words - sum(t.kept * t.offset_bytes for t in offsets)
