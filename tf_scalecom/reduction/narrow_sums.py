"""Sums of values that travel in fewer than 32 bits: added in float32, and nothing of them is lost.

An all-reduce would round at each of its additions. Here replica r of n owns a run of the kept
values: all hand it theirs by an all-to-all; it sums in float32, and its sum goes to all, as narrow
as the values came. What rounding takes from a value stays in the residual of whoever rounds it. The
bytes are those of a ring.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.ops.narrow_values import narrowed, pack_values, scale_for, unpack_values
from tf_scalecom.ops.words import starts_of_chunks, unpack_offsets
from tf_scalecom.reduction.communicator import Communicator
from tf_scalecom.wire.dtypes import DTYPES
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.report import run_of_narrow_values


def sum_narrow(
    selected: Sequence[tf.Tensor],
    words: Sequence[tf.Tensor],
    unsent: Sequence[Sequence[tf.Tensor]],
    layout: Layout,
    dtype: str,
    communicator: Communicator,
) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
    """Sums what `Kernels.gather` has selected; lists begin with [replica of this process].

    Args:
        selected: [layout.kept + 1].
        words: of what is selected.
        unsent: what was not.
        layout: the plan, as it is in memory.
        dtype: in which values travel.
        communicator: joins the replicas.

    Returns:
        The sums, alike on all, in the dtype of `selected`; and what is unsent, with what rounding
        took.
    """
    if communicator.route.broadcasts:
        sums, lost = _by_owners(selected, dtype, communicator)
    elif tf.as_dtype(dtype).is_integer:
        raise ValueError(
            '`value_dtype`: expected "float32", "bfloat16" or "float16" under a strategy whose '
            f"all-reduce sums gradients; received {dtype!r}. Train under "
            "tf_scalecom.MultiWorkerMirroredStrategy, or give a MirroredStrategy "
            "`cross_device_ops=tf_scalecom.ScaleComAllReduce.for_devices()`."
        )
    elif DTYPES[dtype].is_scaled:
        sums, lost = _by_one_scale(selected, dtype, communicator)
    else:
        return _all_reduced(selected, communicator), [list(own) for own in unsent]
    kept = [
        _with_lost(own, of_replica, first, w, layout)
        for own, (of_replica, first), w in zip(unsent, lost, words, strict=True)
    ]
    return sums, kept


def rounded(
    selected: tf.Tensor,
    words: tf.Tensor,
    unsent: Sequence[tf.Tensor],
    layout: Layout,
    dtype: str,
) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
    """What one replica sends, as it arrives where nothing is summed on the way, and what it keeps.

    Arguments are as of `sum_narrow`, of one replica.
    """
    if not DTYPES[dtype].is_scaled:
        return selected, unsent
    scale = scale_for(tf.reduce_max(tf.abs(selected)), dtype)
    sent = tf.cast(narrowed(selected, scale, dtype), tf.float32) * scale
    return sent, _with_lost(unsent, selected - sent, 0, words, layout)


def _by_owners(selected, dtype, communicator):
    """Sums and, of each replica of this process, (what rounding took, which value is its first)."""
    n, (size,) = communicator.num_replicas, selected[0].shape
    run = run_of_narrow_values(size, dtype, n)
    values = [tf.reshape(tf.pad(s, [[0, n * run - size]]), [n, run]) for s in selected]
    sent = [pack_values(v, dtype) for v in values]
    totals = [
        tf.reduce_sum(unpack_values(received, dtype), axis=0)
        for received in communicator.all_to_all(sent)
    ]
    own_sums = [pack_values(total, dtype) for total in totals]
    sums = [
        tf.cast(tf.reshape(unpack_values(of_all, dtype), [-1])[:size], selected[0].dtype)
        for of_all in communicator.all_gather(own_sums)
    ]
    lost = []
    for v, s, total, own_sum, replica in zip(
        values, sent, totals, own_sums, communicator.replica_ids, strict=True
    ):
        of_run = total - unpack_values(own_sum, dtype)
        if DTYPES[dtype].is_scaled:  # of what it sent, too: the kernels have not rounded it
            of_all = v - unpack_values(s, dtype)
            of_all += tf.pad(of_run[tf.newaxis], [[replica, n - 1 - replica], [0, 0]])
            lost.append((tf.reshape(of_all, [-1]), 0))
        else:
            lost.append((of_run, replica * run))
    return sums, lost


def _by_one_scale(selected, dtype, communicator):
    """The same by an all-reduce, at a scale that is enough for all; its own rounding is lost."""
    bounds = _all_reduced([tf.reduce_max(tf.abs(s)) for s in selected], communicator)
    scales = [scale_for(bound, dtype) for bound in bounds]
    sent = [narrowed(s, scale, dtype) for s, scale in zip(selected, scales, strict=True)]
    sums = [
        tf.cast(s, tf.float32) * scale
        for s, scale in zip(_all_reduced(sent, communicator), scales, strict=True)
    ]
    lost = [
        (own - tf.cast(s, tf.float32) * scale, 0)
        for own, s, scale in zip(selected, sent, scales, strict=True)
    ]
    return sums, lost


def _all_reduced(values, communicator) -> list[tf.Tensor]:
    """Of one tensor of each replica."""
    return [sums[0] for sums in communicator.all_reduce([[v] for v in values])]


def _with_lost(unsent, lost, first, words, layout) -> list[tf.Tensor]:
    """Adds what kept values have lost, from the `first` of them on, where they come from."""
    unsent, begin = list(unsent), 0
    at, indices, values = [], [], []
    tensors = [layout.tensors[i] for i in layout.compressed]
    for place, (offsets, tensor) in enumerate(
        zip(unpack_offsets(words, layout), tensors, strict=True)
    ):
        # Of this tensor's kept values, those that have lost.
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
