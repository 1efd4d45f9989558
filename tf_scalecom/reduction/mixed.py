"""CLT-k among replicas that make their residuals alike now and then. In simulations, so far.

Every K steps replica i of n, with residual m_i, adds to its gradient

    d_i = sum_j P(m_j) / n - P(m_i)

P(m) is a picture of m in few bits. The d_i add up to nothing, so that the sum of all residuals is
what it was; each replica's own is nearer to the mean, and its choice, when it leads, nearer to that
of the sum.
"""

import tensorflow as tf

from tf_scalecom.reduction import MethodOptions
from tf_scalecom.reduction.clt_k import CltK
from tf_scalecom.reduction.picture import ResidualPictures


class MixedTopK(CltK):
    """CLT-k with mixing. The pictures go to all by an all-gather; here their sum comes dense.

    Args:
        pictures: what is mixed, and when.
        what_to_send: as of `CltK`.
    """

    bounded = False  # the bound is about a choice by the residuals as they are

    def __init__(self, pictures: ResidualPictures, **what_to_send):
        super().__init__(**what_to_send)
        self._pictures = pictures

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(ResidualPictures.from_options(options), **options.compression.get_config())

    def propose(self, gradients, plan, state, step, communicator):
        tensors = [plan.tensors[i] for i in plan.compressed]
        pictures = [
            [self._pictures.picture(m, tensor) for m, tensor in zip(own, tensors, strict=True)]
            for own in state
        ]
        sums = communicator.all_reduce(pictures)
        mixes = tf.cast(step % self._pictures.every == 0, tf.float32)
        mixed = []
        for own, own_pictures, own_sums in zip(gradients, pictures, sums, strict=True):
            own = list(own)
            for i, mine, total in zip(plan.compressed, own_pictures, own_sums, strict=True):
                towards_mean = mixes * (total / communicator.num_replicas - mine)
                own[i] += tf.cast(towards_mean, own[i].dtype)
            mixed.append(own)
        return super().propose(mixed, plan, state, step, communicator)

    def report(self, plan, num_replicas, route):
        """A ring all-gather passes on the pictures of all others."""
        return (
            super()
            .report(plan, num_replicas, route)
            .with_more(
                {
                    i: (num_replicas - 1) * self._pictures.bytes_per_step(plan.tensors[i])
                    for i in plan.compressed
                }
            )
        )
