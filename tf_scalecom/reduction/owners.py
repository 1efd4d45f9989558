"""CLT-k where every replica owns a share of the chunks, and is handed what is largest there.

The owner of a chunk chooses there in every step. All others first hand it what they themselves
would choose, in bfloat16: each takes it from its compensated gradient, and the owner adds it to its
own. So the sum of all residuals is what it was; as most of it is with the owner, the owner's choice
is nearly that of the sum.

    p_i           = m_i + g_i                                compensated
    d_i           = largest |p_i| per chunk, in bfloat16     to each chunk's owner
    p_i          -= d_i where another owns the chunk
    p_owner      += sum of the others' d_i
    I             = largest |p_owner| per chunk              to all
    s_i, g, m_i'  as of CLT-k
"""

import dataclasses

import keras
import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.ops.words import index_dtype, unpack_offsets
from tf_scalecom.reduction.clt_k import summable_limit
from tf_scalecom.reduction.shares import Shares, SharesTopK
from tf_scalecom.wire.shares import HANDED_DTYPE, owners_report


@keras.saving.register_keras_serializable(package="tf_scalecom")
class OwnersTopK(SharesTopK):
    """The owners' choices for all; with `CltK`'s arguments, but for exact selection.

    Raises:
        ValueError: an argument is out of its range.
    """

    def report(self, plan, num_replicas, route):
        return owners_report(plan, num_replicas, route)

    def _who_selects(self, step, communicator):
        return [True for _ in communicator.replica_ids]

    def _first_share(self, step, communicator):
        return 0

    def _agreed(self, bucket, compensated, step, communicator):
        collected = self._collected(bucket.layout, compensated, communicator)
        return super()._agreed(bucket, collected, step, communicator)

    def _collected(self, layout, compensated, communicator) -> list[ops.Compensated]:
        """With each owner's part of what is handed over, its own part back among it."""
        shares = Shares(layout, communicator.num_replicas)
        handing = dataclasses.replace(layout, value_dtype=HANDED_DTYPE)
        kernels = ops.kernels_for(handing)
        limit = summable_limit(HANDED_DTYPE, "float32", communicator.num_replicas)
        handed = [
            kernels.gather(own.values, own.words, own.nonfinite, handing, limit)
            for own in compensated
        ]
        received = communicator.all_to_all(
            [
                _message(shares, own.words, gathered.selected)
                for own, gathered in zip(compensated, handed, strict=True)
            ]
        )
        return [
            own._replace(values=_added(gathered.unsent, message, shares, replica))
            for own, gathered, message, replica in zip(
                compensated, handed, received, communicator.replica_ids, strict=True
            )
        ]


def _message(shares, words, selected) -> tf.Tensor:
    """int32 [owner, words of a message]: offsets, then values."""
    values = shares.split_values(selected[:-1])
    values = tf.pad(values, [[0, 0], [0, values.shape[1] % 2]])
    values = tf.bitcast(tf.reshape(values, [shares.count, -1, 2]), tf.int32)
    return tf.concat([shares.split(words), values], axis=1)


def _added(unsent, messages, shares, replica) -> list[tf.Tensor]:
    """Compensated gradients with what all have handed to a replica, by their ids in turn."""
    share = shares.share
    offsets = unpack_offsets(messages[:, : share.offset_words], share)
    values = tf.bitcast(messages[:, share.offset_words :], HANDED_DTYPE)
    values = tf.reshape(values, [shares.count, -1])[:, : share.kept]
    parts = tf.split(tf.cast(values, tf.float32), [t.kept for t in share.tensors], axis=1)
    tensors = [shares.layout.tensors[i] for i in shares.layout.compressed]
    indices = []
    for of_share, own, tensor in zip(share.tensors, offsets, tensors, strict=True):
        dtype = index_dtype(tensor)
        chunks = tf.range(of_share.kept, dtype=dtype) // of_share.chunk_keep
        chunks += tf.cast(replica, dtype) * of_share.full_chunks
        # What pads a share is 0, or behind the end.
        indices.append(chunks * tensor.chunk_size + tf.cast(own, dtype))
    return ops.kernels_for(shares.layout).add(unsent, indices, parts)
