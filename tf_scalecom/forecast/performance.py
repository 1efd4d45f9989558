"""The performance model: what a training step moves, and how long that takes on a cluster.

    step = compute + kernels + inside + wire + host + latency

    compute  forward, backward and update, nothing exchanged
    kernels  bytes that compensate and scatter must move / memory bandwidth
    inside   bytes through a worker's first replica / bandwidth inside a worker (hierarchical)
    wire     bytes that pass one link one after another / bandwidth of a link
    host     the same bytes * time that the runtime spends on a byte
    latency  messages that wait for one another * time of a message

Nothing is hidden behind anything else. The bytes are those of `compression_report`; no tensors and
no TensorFlow here.
"""

import dataclasses
import math

from tf_scalecom.wire.dtypes import DTYPES
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.low_rank import LowRankPlan, low_rank_report
from tf_scalecom.wire.report import compression_report
from tf_scalecom.wire.route import COLLECTIVES, Route
from tf_scalecom.wire.shares import owners_report

_RESIDUAL_BYTES = DTYPES["float32"].bytes


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Workers, and what moving something costs them.

    Attributes:
        workers: W, processes with a link each.
        link_bytes_per_second: what a worker can send through its link, and receive meanwhile.
        message_seconds: from sending a small message to its arrival, the runtime's part included.
        memory_bytes_per_second: bytes that a copy reads and writes, of one replica's memory.
        host_seconds_per_byte: what the runtime spends on a byte sent: copies, sums, system calls.
        replicas_per_worker: R; W * R replicas train.
        inside_bytes_per_second: between the replicas of a worker; at least as fast as the link.
    """

    workers: int
    link_bytes_per_second: float
    message_seconds: float
    memory_bytes_per_second: float
    host_seconds_per_byte: float = 0.0
    replicas_per_worker: int = 1
    inside_bytes_per_second: float = math.inf


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What one step's exchange must move, whatever the speeds.

    Attributes:
        sent_bytes: sent by a replica (hierarchical: by a worker), mean over a cycle of leaders.
        path_bytes: bytes that pass a link one after another until the last worker has its sums.
        messages: how many messages wait for one another meanwhile.
        kernel_bytes: read and written in the memory of a replica.
        inside_bytes: bytes that pass a link inside a worker, one after another.
    """

    sent_bytes: float
    path_bytes: float
    messages: int
    kernel_bytes: float = 0.0
    inside_bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of one step, by cause; see the module."""

    compute_seconds: float
    kernel_seconds: float
    inside_seconds: float
    wire_seconds: float
    host_seconds: float
    latency_seconds: float

    @property
    def step_seconds(self) -> float:
        return sum(dataclasses.astuple(self))


def step_time(exchange: Exchange, hardware: Hardware, compute_seconds: float) -> StepTime:
    """How long a step with this exchange takes."""
    # The ring of a single worker passes no link.
    link = (
        hardware.link_bytes_per_second if hardware.workers > 1 else hardware.inside_bytes_per_second
    )
    return StepTime(
        compute_seconds=compute_seconds,
        kernel_seconds=exchange.kernel_bytes / hardware.memory_bytes_per_second,
        inside_seconds=exchange.inside_bytes / hardware.inside_bytes_per_second,
        wire_seconds=exchange.path_bytes / link,
        host_seconds=exchange.path_bytes * hardware.host_seconds_per_byte,
        latency_seconds=exchange.messages * hardware.message_seconds,
    )


def break_even_bytes_per_second(contender: Exchange, dense: Exchange, hardware: Hardware) -> float:
    """The bandwidth of a link below which the contender's step is the shorter one.

    Returns:
        0 if it never is, infinity if it is at any bandwidth.
    """
    saved_bytes = dense.path_bytes - contender.path_bytes
    unlimited = dataclasses.replace(hardware, link_bytes_per_second=math.inf)
    lost_seconds = (
        step_time(contender, unlimited, 0.0).step_seconds
        - step_time(dense, unlimited, 0.0).step_seconds
    )
    if saved_bytes <= 0:
        return 0.0
    return saved_bytes / lost_seconds if lost_seconds > 0 else math.inf


def dense_exchange(layout: Layout, replicas: int) -> Exchange:
    """Everything travels as it is: one ring all-reduce for each dtype."""
    plan = layout.without_compression()
    sent = compression_report(plan, replicas, COLLECTIVES).bytes_sent
    return Exchange(sent, sent, len({t.dtype for t in plan.tensors}) * _ring_messages(replicas))


def float16_exchange(layout: Layout, replicas: int) -> Exchange:
    """As dense, with wider gradients cast to float16 before, and back after."""
    if replicas == 1:
        return dense_exchange(layout, replicas)
    bits = DTYPES["float16"].significant_bits
    wide = [t for t in layout.tensors if DTYPES[t.dtype].significant_bits > bits]
    halves = {t: dataclasses.replace(t, dtype="float16") for t in wide}
    tensors = tuple(halves.get(t, t) for t in layout.tensors)
    exchange = dense_exchange(dataclasses.replace(layout, tensors=tensors), replicas)
    # Both casts read one of the two and write the other.
    cast_bytes = 2 * sum(t.gradient_bytes + halves[t].gradient_bytes for t in wide)
    return dataclasses.replace(exchange, kernel_bytes=cast_bytes)


def compressed_exchange(
    layout: Layout,
    bucket_bytes: float,
    workers: int,
    replicas_per_worker: int = 1,
    in_place: bool = False,
) -> Exchange:
    """CLT-k among all replicas: of each bucket the offsets by broadcast, the values by a ring.

    Args:
        layout: the plan; where it compresses nothing this is `dense_exchange`.
        bucket_bytes: as in `Layout.buckets`.
        workers, replicas_per_worker: as in `Hardware`.
        in_place: whether the optimizer is plain SGD, which updates what was sent alone.
    """
    n = workers * replicas_per_worker
    if n == 1 or not layout.compressed:
        return dense_exchange(layout, n)
    report = compression_report(layout, n, Route(True, bucket_bytes))
    buckets = [layout.subset(positions) for positions in layout.buckets(bucket_bytes)]
    offset_bytes = 4 * sum(bucket.offset_words for bucket in buckets)
    between, inside = _Tree(workers), _Tree(replicas_per_worker)
    # The report has the offsets at what a replica sends on average; on the way to the last worker
    # they leave as many nodes as the tree is deep, twice each.
    values_bytes = report.bytes_sent - offset_bytes * (n - 1) / n
    return Exchange(
        sent_bytes=report.bytes_sent,
        path_bytes=values_bytes + offset_bytes * between.sends,
        messages=sum(
            _sum_messages(bucket, n) + bool(bucket.compressed) * between.depth for bucket in buckets
        ),
        kernel_bytes=_kernel_bytes(layout, in_place),
        inside_bytes=offset_bytes * inside.sends,
    )


def hierarchical_exchange(
    layout: Layout, bucket_bytes: float, workers: int, replicas_per_worker: int
) -> Exchange:
    """The replicas of a worker sum their gradients on the first one, which exchanges with others.

    Args:
        layout, bucket_bytes, workers: as in `compressed_exchange`.
        replicas_per_worker: 2 or more.
    """
    exchange = compressed_exchange(layout, bucket_bytes, workers)
    gradient_bytes = sum(t.gradient_bytes for t in layout.tensors)
    others = replicas_per_worker - 1
    return dataclasses.replace(
        exchange,
        # Reads its own and all others' gradients, writes the sum.
        kernel_bytes=exchange.kernel_bytes + (others + 2) * gradient_bytes,
        # All come in through the first replica's link, and the results leave through it.
        inside_bytes=2 * others * gradient_bytes,
    )


def owners_exchange(
    layout: Layout, bucket_bytes: float, workers: int, replicas_per_worker: int = 1
) -> Exchange:
    """`methods.OwnersTopK` among all replicas: all-to-all, all-gather of offsets, a ring.

    Args: as of `compressed_exchange`.
    """
    n = workers * replicas_per_worker
    exchange = compressed_exchange(layout, bucket_bytes, workers, replicas_per_worker)
    if n == 1 or not layout.compressed:
        return exchange
    sent = owners_report(layout, n, Route(True, bucket_bytes)).bytes_sent
    buckets = [layout.subset(positions) for positions in layout.buckets(bucket_bytes)]
    # An owner selects once more, in its share.
    share_elements = sum(layout.tensors[i].elements for i in layout.compressed) / n
    return dataclasses.replace(
        exchange,
        sent_bytes=sent,
        path_bytes=sent,
        messages=sum(_sum_messages(bucket, n) + bool(bucket.compressed) * n for bucket in buckets),
        kernel_bytes=exchange.kernel_bytes + 3 * _RESIDUAL_BYTES * share_elements,
        inside_bytes=0.0,
    )


def low_rank_exchange(
    plan: LowRankPlan, bucket_bytes: float, workers: int, replicas_per_worker: int = 1
) -> Exchange:
    """`methods.PowerSGD` among all replicas: two rings, one after the other.

    Args:
        plan: which variables travel as two matrices, and of what rank.
        bucket_bytes, workers, replicas_per_worker: as of `compressed_exchange`.
    """
    n = workers * replicas_per_worker
    sent = low_rank_report(plan, n).bytes_sent
    # Beside residual + gradient, as there: a read for each of the two products with it, their
    # result written; then it and the residual's read, and the residual written.
    elements = sum(plan.tensors[i].elements for i in plan.compressed)
    return Exchange(
        sent_bytes=sent,
        path_bytes=sent,
        messages=2 * _ring_messages(n) if n > 1 else 0,
        kernel_bytes=9 * _RESIDUAL_BYTES * elements if n > 1 else 0.0,
    )


class _Tree:
    """TensorFlow's broadcast: node r passes on to nodes 2r + 1 and 2r + 2, which share its link.

    Attributes:
        depth: messages on the longest way from the root.
        sends: copies that leave the nodes of that way, one after another.
    """

    def __init__(self, nodes: int):
        self.depth = self.sends = node = 0
        while (first := 2 * node + 1) < nodes:
            self.depth += 1
            self.sends += 2 if first + 1 < nodes else 1
            node = first


def _ring_messages(n: int) -> int:
    """A ring passes n pieces round twice, but for the last step of each: summed, then whole."""
    return 2 * (n - 1)


def _sum_messages(bucket: Layout, n: int) -> int:
    """Of what a bucket sums: a ring for each dtype; of narrow values all-to-all and all-gather."""
    rings = {bucket.tensors[i].dtype for i in bucket.dense}
    if not bucket.compressed:
        return len(rings) * _ring_messages(n)
    if DTYPES[bucket.value_dtype].is_narrow:
        return len(rings) * _ring_messages(n) + n
    return len(rings | {bucket.value_dtype}) * _ring_messages(n)


def _kernel_bytes(layout: Layout, in_place: bool) -> float:
    """Read or written per step.

    Gradient and residual are read and their sum is written, with or without a selection. Then the
    dense sum is written; or, in place of that, an update of all elements saved, which reads
    gradient and variable and writes the variable. What gather touches is 1 / compression_ratio of
    all that, and left out.
    """
    total = 0.0
    for position in layout.compressed:
        tensor = layout.tensors[position]
        gradient, residual = tensor.gradient_bytes, _RESIDUAL_BYTES * tensor.elements
        total += gradient + 2 * residual + (-3 * gradient if in_place else gradient)
    return total
