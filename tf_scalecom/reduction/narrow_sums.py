"""Sums of values that travel in 16 bits: added in float32, and what they lose stays in a residual.

An all-reduce would round to 16 bits at each of its additions. Here replica r of n owns a run of the
kept values: all hand it theirs by an all-to-all; it sums in float32, and its sum goes to all in
16 bits. What rounding took from the sum stays in its residual. The bytes are those of a ring.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.ops.words import starts_of_chunks, unpack_offsets
from tf_scalecom.reduction.communicator import Communicator
from tf_scalecom.wire.dtypes import DTYPES
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.report import run_of_narrow_values
from tf_scalecom.wire.route import Route


def is_narrow(layout: Layout, route: Route) -> bool:
    """Whether values are summed so; without collectives an all-reduce is all that there is."""
    return DTYPES[layout.value_dtype].bytes == 2 and route.broadcasts


def sum_narrow(
    selected: Sequence[tf.Tensor],
    words: Sequence[tf.Tensor],
    unsent: Sequence[Sequence[tf.Tensor]],
    layout: Layout,
    communicator: Communicator,
) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
    """Sums what `Kernels.gather` has selected; lists begin with [replica of this process].

    Args:
        selected: [layout.kept + 1], in the dtype of the wire.
        words: of what is selected.
        unsent: what was not.
        layout: the plan.
        communicator: joins the replicas.

    Returns:
        The sums, alike on all; and what is unsent, with what rounding took from each replica's run.
    """
    n = communicator.num_replicas
    size = layout.kept + 1
    run = run_of_narrow_values(layout, n)
    received = communicator.all_to_all(
        [_as_words(tf.reshape(tf.pad(s, [[0, n * run - size]]), [n, run])) for s in selected]
    )
    totals = [
        tf.reduce_sum(tf.cast(_as_values(r, layout.value_dtype), tf.float32), axis=0)
        for r in received
    ]
    rounded = [tf.cast(total, layout.value_dtype) for total in totals]
    gathered = communicator.all_gather([_as_words(r) for r in rounded])
    sums = [tf.reshape(_as_values(g, layout.value_dtype), [-1])[:size] for g in gathered]
    kept = [
        _with_lost(own, total - tf.cast(r, tf.float32), of_replica, layout, replica * run)
        for own, total, r, of_replica, replica in zip(
            unsent, totals, rounded, words, communicator.replica_ids, strict=True
        )
    ]
    return sums, kept


def _as_words(values):
    """[..., 2 m] of 16 bits as int32 [..., m]."""
    *axes, size = values.shape
    return tf.bitcast(tf.reshape(values, [*axes, size // 2, 2]), tf.int32)


def _as_values(words, dtype):
    """Inverse of `_as_words`."""
    *axes, size = words.shape
    return tf.reshape(tf.bitcast(words, dtype), [*axes, 2 * size])


def _with_lost(unsent, lost, words, layout, first) -> list[tf.Tensor]:
    """Adds what a run of the kept values has lost, the `first` of all on, where they come from."""
    unsent, begin = list(unsent), 0
    at, indices, values = [], [], []
    tensors = [layout.tensors[i] for i in layout.compressed]
    for place, (offsets, tensor) in enumerate(
        zip(unpack_offsets(words, layout), tensors, strict=True)
    ):
        # Of this tensor's kept values, those of the run.
        low = min(max(first - begin, 0), tensor.kept)
        high = min(max(first + lost.shape[0] - begin, 0), tensor.kept)
        if low < high:
            starts = starts_of_chunks(tensor, low, high)
            at.append(place)
            of_run = tf.cast(offsets[low:high], starts.dtype) + starts
            indices.append(of_run[tf.newaxis])
            values.append(lost[tf.newaxis, begin + low - first : begin + high - first])
        begin += tensor.kept
    if at:
        with_lost = ops.kernels_for(layout).add([unsent[i] for i in at], indices, values)
        for i, tensor in zip(at, with_lost, strict=True):
            unsent[i] = tensor
    return unsent
