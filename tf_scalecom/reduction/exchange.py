"""One exchange of gradients by a method."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_scalecom.reduction.clipped import Clipped
from tf_scalecom.reduction.communicator import Communicator
from tf_scalecom.reduction.dense import Dense
from tf_scalecom.reduction.method import Gradient, Method
from tf_scalecom.wire.plan import Plan


class Exchanged(NamedTuple):
    """Result of one exchange; entry r of a list belongs to replica r of this process.

    Attributes:
        gradients: [replica][variable], summed over all replicas, bit-equal on all of them, as Keras
            takes them (see `Update.for_optimizer`); or as the method has them.
        finite: bool scalar per replica, equal on all. Where false some replica's gradient, or its
            residual + gradient, was not finite: residuals are as they were, and the gradients are
            not to be used.
    """

    gradients: list[list[Gradient]]
    finite: list[tf.Tensor]


def method_for(plan: Plan, method: Method) -> Method:
    """The method for a plan: one that compresses nothing is `Dense`'s, whoever made it."""
    if plan.compressed or isinstance(method, Dense):
        return method
    return Dense(method.clipping if isinstance(method, Clipped) else None)


def exchange(
    gradients: Sequence[Sequence[Gradient]],
    plan: Plan,
    state: Sequence[Sequence[tf.Variable]],
    step: tf.Tensor,
    communicator: Communicator,
    method: Method,
    as_slices: bool = False,
) -> Exchanged:
    """Sums gradients over all replicas by a method, which updates its state if all were finite.

    Args:
        gradients, plan, state, step, communicator: as in `Method.propose`.
        method: whose plan and state they are.
        as_slices: whether sums may be slices of variables as vectors; see `Method.finish`.
    """
    method = method_for(plan, method)
    pending = method.propose(gradients, plan, state, step, communicator)
    updates = method.finish(pending, pending.finite, as_slices)
    sums = [list(u.gradients if as_slices else u.for_optimizer(plan)) for u in updates]
    return Exchanged(sums, pending.finite)
