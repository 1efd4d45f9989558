"""A method of reduction with clipping, which has its place before or behind it: see `clipping`."""

import dataclasses

from tf_scalecom.reduction.clipping import Clipping
from tf_scalecom.reduction.dense import Dense
from tf_scalecom.reduction.method import Method, Pending
from tf_scalecom.wire.plan import Plan


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """See `method.Pending`."""

    plan: Plan
    pending: Pending

    @property
    def finite(self):
        return self.pending.finite


@dataclasses.dataclass(frozen=True)
class Clipped(Method):
    """A method that compresses, with clipping before it, and behind it of what travels dense.

    Attributes:
        method: how gradients become one.
        clipping: of them.
    """

    method: Method
    clipping: Clipping

    def __post_init__(self):
        for name in ("elementwise", "bounded", "conserves", "has_ramp", "has_slices"):
            object.__setattr__(self, name, getattr(self.method, name))

    @classmethod
    def from_options(cls, options):
        raise NotImplementedError("a method is clipped by `clipped`")

    def plan(self, variables, growth=1.0):
        return self.method.plan(variables, growth)

    def init(self, plan):
        return self.method.init(plan)

    def propose(self, gradients, plan, state, step, communicator):
        n = communicator.num_replicas
        own = [self.clipping.clip_own(gs, plan, n) for gs in gradients]
        return _Exchange(plan, self.method.propose(own, plan, state, step, communicator))

    def finish(self, pending, finite, as_slices=False):
        return [
            update._replace(gradients=self.clipping.clip_sums(update.gradients, pending.plan))
            for update in self.method.finish(pending.pending, finite, as_slices)
        ]

    def report(self, plan, num_replicas, route):
        return self.method.report(plan, num_replicas, route)


def clipped(method: Method, clipping: Clipping | None) -> Method:
    """A method with clipping, if there is any."""
    if clipping is None:
        return method
    return Dense(clipping) if isinstance(method, Dense) else Clipped(method, clipping)
