"""Local top-k: each replica sends its own selection. For comparison, in simulations."""

import dataclasses

import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.ops import xla
from tf_scalecom.reduction.clt_k import Bucket, CltK, bucket_of, summable_limit
from tf_scalecom.reduction.method import Update
from tf_scalecom.reduction.narrow_sums import rounded


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """All variables of a step; lists begin with [replica]. See `clt_k` for the words."""

    bucket: Bucket
    own: list[list[tf.Tensor]]
    unsent: list[list[tf.Tensor]]
    sums: list[list[tf.Tensor]]
    finite: list[tf.Tensor]


class LocalTopK(CltK):
    """Each replica sends its own selection, as if alone; the sum has the union of them.

    No all-reduce could carry that: by a ring all-gather every replica passes on the messages of all
    others, n - 1 of them, and those are the bytes it reports. Here the union is summed dense.
    """

    bounded = has_slices = False

    def propose(self, gradients, plan, state, step, communicator):
        bucket = bucket_of(range(len(plan.tensors)), gradients, plan, state)
        layout, kernels = bucket.layout, ops.kernels_for(bucket.layout)
        # Nothing is summed on the wire.
        limits = [
            summable_limit(bucket.value_dtype, layout.tensors[i].dtype, num_replicas=1)
            for i in layout.compressed
        ]
        own, unsent, sent = [], [], []
        for g, m, d in zip(bucket.gradients, bucket.residuals, bucket.dense_gradients, strict=True):
            compensated = kernels.compensate(g, m, True, layout)
            gathered = kernels.gather(
                compensated.values, compensated.words, compensated.nonfinite, layout, limits
            )
            selected, kept = rounded(
                gathered.selected, compensated.words, gathered.unsent, layout, bucket.value_dtype
            )
            unsent.append(kept)
            own.append(xla.scatter(compensated.words, selected, layout))
            sent.append([*own[-1], selected[-1], *d])
        sums = communicator.all_reduce(sent)
        finite = [ops.all_finite(s) for s in sums]
        return _Exchange(bucket, own, unsent, sums, finite)

    def finish(self, pending, finite, as_slices=False):
        bucket, layout = pending.bucket, pending.bucket.layout
        kernels = ops.kernels_for(layout)
        count = len(layout.compressed)
        positions = [*bucket.compressed, *bucket.dense]
        updates = []
        for r, sums in enumerate(pending.sums):
            kernels.filter_residuals(pending.unsent[r], bucket.residuals[r], finite[r], layout)
            compressed, dense = sums[:count], sums[count + 1 :]
            gradients = dict(zip(positions, [*compressed, *dense], strict=True))
            taken = dict(zip(positions, [*pending.own[r], *dense], strict=True))
            order = range(len(positions))
            updates.append(Update([gradients[i] for i in order], [taken[i] for i in order]))
        return updates

    def report(self, plan, num_replicas, route):
        report = super().report(plan, num_replicas, route)
        if not plan.compressed:
            return report
        others = num_replicas - 1
        padding = 4 * plan.offset_words - sum(t.kept * t.offset_bytes for t in plan.tensors)
        more = {
            i: others * plan.tensors[i].payload(plan.value_dtype) - report.rows[i].bytes_sent
            for i in plan.compressed
        }
        overhead = report.bytes_sent - sum(row.bytes_sent for row in report.rows)
        return report.with_more(more, others * padding - overhead)
