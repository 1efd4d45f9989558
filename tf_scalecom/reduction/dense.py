"""Everything travels as it is: what is compared with, a warm-up, ratio 1."""

import dataclasses

import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.reduction.clipping import Clipping
from tf_scalecom.reduction.method import Method, Update
from tf_scalecom.wire.config import CompressionConfig
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.report import compression_report


@dataclasses.dataclass(frozen=True)
class _Summed:
    sums: list[list[tf.Tensor]]
    finite: list[tf.Tensor]


class Dense(Method):
    """A plain all-reduce, of whatever plan; nothing is kept.

    Args:
        clipping: of the sums, if any.
    """

    def __init__(self, clipping: Clipping | None = None):
        self.clipping = clipping

    elementwise = True

    @classmethod
    def from_options(cls, options):
        return cls()

    def plan(self, variables, growth=1.0):
        return CompressionConfig(compression_ratio=1).layout(variables)

    def init(self, plan):
        return [() for _ in plan.tensors]

    def propose(self, gradients, plan, state, step, communicator):
        sums = communicator.all_reduce(gradients)
        if self.clipping:
            sums = [self.clipping.clip(s) for s in sums]
        # A value that is not finite on one replica leaves a sum that is not finite on all.
        return _Summed(sums, [ops.all_finite(s) for s in sums])

    def finish(self, pending, finite, as_slices=False):
        return [Update(gradients) for gradients in pending.sums]

    def report(self, plan, num_replicas, route):
        return compression_report(Layout(plan.tensors), num_replicas, route)
