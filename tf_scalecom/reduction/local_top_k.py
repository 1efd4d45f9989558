"""Local top-k: each replica sends its own selection. For comparison, in simulations."""

import dataclasses

import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.ops import xla
from tf_scalecom.reduction.clt_k import Bucket, CltK, bucket_of, summable_limit
from tf_scalecom.reduction.method import Update


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """All variables of a step; lists begin with [replica]. See `clt_k` for the words."""

    bucket: Bucket
    words: list[tf.Tensor]
    selected: list[tf.Tensor]
    limits: list[float]
    sums: list[list[tf.Tensor]]
    finite: list[tf.Tensor]


class LocalTopK(CltK):
    """Each replica sends its own selection, as if alone; the sum has the union of them.

    No all-reduce could carry that: by a ring all-gather every replica passes on the messages of all
    others, n - 1 of them, and those are the bytes it reports. Here the union is summed dense.
    """

    bounded = False

    def propose(self, gradients, plan, state, step, communicator):
        bucket = bucket_of(range(len(plan.tensors)), gradients, plan, state)
        layout, kernels = bucket.layout, ops.kernels_for(bucket.layout)
        # Nothing is summed on the wire.
        limits = [
            summable_limit(layout.value_dtype, layout.tensors[i].dtype, num_replicas=1)
            for i in layout.compressed
        ]
        words, selected, own = [], [], []
        for g, m, d in zip(bucket.gradients, bucket.residuals, bucket.dense_gradients, strict=True):
            w = kernels.select(g, m, layout)
            s = kernels.gather(g, m, w, kernels.any_nonfinite(g, m), layout, limits)
            words.append(w)
            selected.append(s)
            own.append([*xla.scatter(s, xla.flat_indices(w, layout), layout), s[-1], *d])
        sums = communicator.all_reduce(own)
        finite = [ops.all_finite(s) for s in sums]
        return _Exchange(bucket, words, selected, limits, sums, finite)

    def finish(self, pending, finite):
        bucket, layout = pending.bucket, pending.bucket.layout
        kernels = ops.kernels_for(layout)
        count = len(layout.compressed)
        positions = [*bucket.compressed, *bucket.dense]
        updates = []
        for r, sums in enumerate(pending.sums):
            own = kernels.update(
                bucket.gradients[r],
                bucket.residuals[r],
                pending.words[r],
                pending.selected[r],
                finite[r],
                layout,
                pending.limits,
            )
            compressed, dense = sums[:count], sums[count + 1 :]
            gradients = dict(zip(positions, [*compressed, *dense], strict=True))
            taken = dict(zip(positions, [*own, *dense], strict=True))
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
