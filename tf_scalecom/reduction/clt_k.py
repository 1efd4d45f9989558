"""CLT-k: ScaleCom's reduction, with a low-pass-filtered residual, for any communicator.

One step on replica i of n, residual m_i, gradient g_i (Chen et al., NeurIPS 2020, Algorithm 1):

    p_i    = m_i + g_i                                        compensated
    I      = largest |p_leader| per chunk, leader = step mod n  select, broadcast
    s_i    = p_i on I, in the dtype of the wire                 selected
    g      = sum_i s_i on I, 0 elsewhere                        reduced
    m_i'   = (1 - beta) m_i + beta (p_i - s_i)   s_i = 0 off I   residual

The reduction sums: losses are weighed before, by 1/n or the share of the rows. With a float32 wire
p_i - s_i is 0; with a 16-bit wire it is the error of the cast, which stays in the residual. There g
is rounded, too, on its way to all: that error stays in the residual of one of them
(`narrow_sums`). So does what would make the sum overflow, on the wire or in the variable's dtype:
s_i is at most 1/n of its range.

All of this where every p_i is finite. Otherwise m_i' = m_i, and there is no g.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.reduction import MethodOptions
from tf_scalecom.reduction.communicator import Communicator
from tf_scalecom.reduction.method import Gradient, Method, Update
from tf_scalecom.reduction.narrow_sums import sum_narrow
from tf_scalecom.reduction.variables import ResidualVariable
from tf_scalecom.wire.config import CompressionConfig
from tf_scalecom.wire.dtypes import DTYPES
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.report import compression_report


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Variables that are exchanged together. Lists begin with [replica of this process].

    Attributes:
        layout: their plan, as it is in memory.
        value_dtype: in which kept values travel.
        compressed, dense: their positions in the plan of all variables, of which each travels
            so.
        gradients, residuals: of the compressed ones. `Kernels.compensate` may use the gradients up.
        dense_gradients: of the others.
    """

    layout: Layout
    value_dtype: str
    compressed: list[int]
    dense: list[int]
    gradients: list[list[tf.Tensor]]
    residuals: list[list[tf.Variable]]
    dense_gradients: list[list[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class _Sent:
    """A bucket whose sums are there, or on their way.

    Attributes:
        bucket: what was sent.
        words: [replica] the offsets; none if nothing of it is compressed.
        unsent: [replica][compressed variable] what is not sent of residual + gradient.
        sums: [replica] of selected values and flag, if any, and of the dense tensors.
    """

    bucket: Bucket
    words: list[tf.Tensor]
    unsent: list[list[tf.Tensor]]
    sums: list[list[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """All buckets of a step; see `method.Pending`."""

    sent: list[_Sent]
    finite: list[tf.Tensor]


@keras.saving.register_keras_serializable(package="tf_scalecom")
class CltK(Method):
    """The leader's selection for all. Its plan is a `Layout`, its state one residual a variable.

    Args:
        compression_ratio, beta, exclude, selection, chunk_keep, value_dtype: what to send, as of
            `ScaleComOptimizer`.

    Attributes:
        selections: what `selection` may be.

    Raises:
        ValueError: one is out of its range.
    """

    elementwise = bounded = has_slices = True
    selections: tuple[str, ...] = ("chunk", "exact")

    def __init__(
        self,
        compression_ratio: float | str | Mapping[str, float] = 100,
        beta: float = 1.0,
        exclude: str | Sequence[str] = (),
        selection: str = "chunk",
        chunk_keep: int = 1,
        value_dtype: str = "float32",
    ):
        self._config = CompressionConfig(
            compression_ratio=compression_ratio,
            beta=beta,
            exclude=exclude,
            selection=selection,
            chunk_keep=chunk_keep,
            value_dtype=value_dtype,
        )
        if self._config.selection not in self.selections:
            raise ValueError(
                f"{type(self).__name__}: expected a selection of {self.selections}; received "
                f"{selection!r}, of which there is no share for each replica. Leave it out."
            )

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(**options.compression.get_config())

    def get_config(self):
        return self._config.get_config()

    def excluded(self, paths):
        return self._config.excluded(paths)

    def plan(self, variables, growth=1.0):
        return self._config.layout(variables, growth)

    def init(self, plan):
        if plan.compressed:
            ops.kernels_for(plan.in_memory)  # there are none for some
        return [
            () if t.is_dense else (ResidualVariable(t.shape, name=f"residual_{i}"),)
            for i, t in enumerate(plan.tensors)
        ]

    def propose(self, gradients, plan, state, step, communicator):
        buckets = [
            bucket_of(positions, gradients, plan, state)
            for positions in plan.buckets(communicator.route.bucket_bytes)
        ]
        # A bucket waits for its own gradients only, and so travels while others are still computed.
        sent = [self._send(bucket, step, communicator) for bucket in buckets]
        # One check of the sums answers for all replicas, and alike on all.
        finite = [
            tf.reduce_all([ops.all_finite(s.sums[r]) for s in sent]) for r in range(len(gradients))
        ]
        return _Exchange(sent, finite)

    def finish(self, pending, finite, as_slices=False):
        """Filters the residuals where `finite`."""
        updates = []
        for r, is_finite in enumerate(finite):
            by_position = {}
            for sent in pending.sent:
                by_position |= _received(sent, r, is_finite, as_slices)
            updates.append(Update([by_position[i] for i in range(len(by_position))]))
        return updates

    def report(self, plan, num_replicas, route):
        return compression_report(plan, num_replicas, route)

    def _send(self, bucket, step, communicator) -> _Sent:
        """Steps up to the sums, not all finite unless residual + gradient was on all replicas."""
        layout = bucket.layout
        if not layout.compressed:
            return _Sent(bucket, [], [], communicator.all_reduce(bucket.dense_gradients))
        kernels = ops.kernels_for(layout)

        # 1. Residual + gradient and, on the leader, its largest. 2. Broadcast their offsets.
        own = [
            kernels.compensate(g, m, selects, layout)
            for g, m, selects in zip(
                bucket.gradients,
                bucket.residuals,
                self._who_selects(step, communicator),
                strict=True,
            )
        ]
        compensated, words = self._agreed(bucket, own, step, communicator)

        # 3. All-reduce the selected values, a finite flag and the dense tensors.
        # The flag is one more value: 0, or infinity from a replica whose residual + gradient is not
        # finite. Nobody else holds the values, so that they are summed in their own buffer.
        limits = [
            summable_limit(bucket.value_dtype, layout.tensors[i].dtype, communicator.num_replicas)
            for i in layout.compressed
        ]
        gathered = [
            kernels.gather(own.values, w, own.nonfinite, layout, limits)
            for own, w in zip(compensated, words, strict=True)
        ]
        selected, unsent = [g.selected for g in gathered], [g.unsent for g in gathered]
        if DTYPES[bucket.value_dtype].is_narrow:
            selected, unsent = sum_narrow(
                selected, words, unsent, layout, bucket.value_dtype, communicator
            )
            dense = communicator.all_reduce(bucket.dense_gradients)
            sums = [[s, *d] for s, d in zip(selected, dense, strict=True)]
        else:
            sums = communicator.all_reduce(
                [[s, *d] for s, d in zip(selected, bucket.dense_gradients, strict=True)]
            )
        return _Sent(bucket, words, unsent, sums)

    def _who_selects(self, step: tf.Tensor, communicator: Communicator) -> list[tf.Tensor | bool]:
        """Whether each replica of this process selects of its own residual + gradient."""
        return leading(step, communicator)

    def _agreed(
        self,
        bucket: Bucket,
        compensated: Sequence[ops.Compensated],
        step: tf.Tensor,
        communicator: Communicator,
    ) -> tuple[Sequence[ops.Compensated], list[tf.Tensor]]:
        """What each replica then has of residual + gradient; and the words of what all send."""
        words = communicator.broadcast(
            [functools.partial(tf.identity, own.words) for own in compensated],
            leader_of(step, communicator),
            size=bucket.layout.offset_words,
        )
        return compensated, words


def leader_of(step: tf.Tensor, communicator: Communicator) -> tf.Tensor:
    """Id of the replica that leads in a step, int32 scalar."""
    return tf.cast(step % communicator.num_replicas, tf.int32)


def leading(step: tf.Tensor, communicator: Communicator) -> list[tf.Tensor]:
    """Whether each replica of this process leads."""
    leader = leader_of(step, communicator)
    return [tf.equal(leader, replica) for replica in communicator.replica_ids]


def bucket_of(
    positions: Sequence[int],
    gradients: Sequence[Sequence[tf.Tensor]],
    plan: Layout,
    state: Sequence[Sequence[tf.Variable]],
) -> Bucket:
    """The variables at some positions."""
    layout = plan.subset(positions).in_memory
    compressed = [positions[i] for i in layout.compressed]
    dense = [positions[i] for i in layout.dense]
    places = [plan.compressed.index(i) for i in compressed]
    return Bucket(
        layout,
        plan.value_dtype,
        compressed,
        dense,
        gradients=[[gs[i] for i in compressed] for gs in gradients],
        residuals=[[ms[place] for place in places] for ms in state],
        dense_gradients=[[gs[i] for i in dense] for gs in gradients],
    )


def _received(sent: _Sent, replica: int, finite: tf.Tensor, as_slices: bool) -> dict[int, Gradient]:
    """Step 4 of one replica: position -> sum of the variable there."""
    bucket, layout = sent.bucket, sent.bucket.layout
    parts: list[Gradient] = []
    dense = sent.sums[replica]
    if layout.compressed:
        selected, *dense = dense
        kernels = ops.kernels_for(layout)
        words = sent.words[replica]
        free = kernels.filter_residuals(
            sent.unsent[replica], bucket.residuals[replica], finite, layout
        )
        if as_slices:
            parts = ops.slices(words, selected, layout)
        else:
            parts = kernels.scatter(words, selected, layout, free)
    return dict(zip([*bucket.compressed, *bucket.dense], [*parts, *dense], strict=True))


def summable_limit(value_dtype: str, dtype: str, num_replicas: int) -> float:
    """Limit of a value on the wire, for a finite sum over all replicas. The rest stays behind.

    It has so few significant bits that all its multiples up to the sum are numbers of both dtypes:
    then no order of summing rounds up to infinity, and no cast takes anything from the sum.

    Args:
        value_dtype: dtype of the wire.
        dtype: dtype of the variable, to which the sum is cast.
        num_replicas: n.
    """
    wire = "float32" if DTYPES[value_dtype].is_scaled else value_dtype
    largest = float(min(tf.as_dtype(wire).max, tf.as_dtype(dtype).max))
    bits = min(DTYPES[value_dtype].significant_bits, DTYPES[dtype].significant_bits)
    bits = max(1, bits - (num_replicas - 1).bit_length())
    fraction, exponent = math.frexp(largest / num_replicas)
    return math.ldexp(math.floor(math.ldexp(fraction, bits)), exponent - bits)
