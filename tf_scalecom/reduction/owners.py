"""CLT-k where every replica owns a share of the chunks. In simulations, so far.

The owner of a chunk chooses there, by its own compensated gradient p = residual + gradient. Every K
steps all others hand over a picture P(p) of theirs, in few bits: each takes it from its gradient,
and the owner adds the sum of them to its own. So the sum of all residuals is what it was; as most
of it is with the owner, the owner's choice is nearly that of the sum.
"""

import tensorflow as tf

from tf_scalecom.reduction import MethodOptions
from tf_scalecom.reduction.chosen_for_all import SharesTopK, chunk_numbers
from tf_scalecom.reduction.picture import ResidualPictures
from tf_scalecom.wire.config import CompressionConfig


class OwnersTopK(SharesTopK):
    """The owners' choices for all.

    In each step a K-th of every owner's chunks is handed over, so that all steps send alike. On the
    wire an owner receives the pictures of its chunks by an all-to-all; here it takes them from a
    sum of all.

    Args:
        config: what to send.
        pictures: what is handed over, and when.
    """

    def __init__(self, config: CompressionConfig, pictures: ResidualPictures):
        super().__init__(config)
        self._pictures = pictures

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(options.compression, ResidualPictures.from_options(options))

    def propose(self, gradients, plan, state, step, communicator):
        n = communicator.num_replicas
        tensors = [plan.tensors[i] for i in plan.compressed]
        chunks = [chunk_numbers(tensor) for tensor in tensors]
        now = tf.cast(step % self._pictures.every, tf.int32)
        is_due = [c // n % self._pictures.every == now for c in chunks]
        handed = []
        for replica, own, residuals in zip(communicator.replica_ids, gradients, state, strict=True):
            own = [own[i] for i in plan.compressed]
            handed.append(
                [
                    tf.where((c % n != replica) & due, self._pictures.picture(p, tensor), 0.0)
                    for p, tensor, c, due in zip(
                        _compensated(own, residuals), tensors, chunks, is_due, strict=True
                    )
                ]
            )
        sums = communicator.all_reduce(handed)
        collected = []
        for replica, own, given, totals in zip(
            communicator.replica_ids, gradients, handed, sums, strict=True
        ):
            own = list(own)
            for i, c, gone, total in zip(plan.compressed, chunks, given, totals, strict=True):
                moved = tf.where(c % n == replica, total, -gone)
                own[i] += tf.cast(moved, own[i].dtype)
            collected.append(own)
        return super().propose(collected, plan, state, step, communicator)

    def report(self, plan, num_replicas, route):
        report = super().report(plan, num_replicas, route)
        others = (num_replicas - 1) / num_replicas
        return report.with_more(
            {i: others * self._pictures.bytes_per_step(plan.tensors[i]) for i in plan.compressed}
        )

    def _first_led(self, replica, step, num_replicas):
        return replica


def _compensated(gradients, residuals):
    return [tf.cast(g, tf.float32) + m for g, m in zip(gradients, residuals, strict=True)]
