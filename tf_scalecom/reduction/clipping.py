"""Clipping of gradients by a Keras optimizer's own rule, and where a reduction has its place.

One process clips the gradient of all rows: here that is the sum over the replicas. What travels as
it is gets clipped when it is summed, so that the result is that of one process.

What is compressed cannot be: a step's sum holds old residuals, and a part of the elements. There
each of n replicas clips its own gradient, before its residual is added, at c / sqrt(n). Gradients
carry 1/n. Where they are noise, independent of one another, n of norm a sum to one of sqrt(n) a:
such a sum is then at most c. Where they are alike the sum may be up to sqrt(n) c; c / n would bound
it by c, and throw away most of what is noise.

A global norm is that of all variables together, so that one compressed variable has all of them
clipped so. The other limits are each variable's own business.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from tf_scalecom.reduction.method import Gradient
from tf_scalecom.wire.plan import Plan

# An optimizer heeds the first that is set.
_GLOBAL_NORM = "global_clipnorm"
_LIMITS = ("clipnorm", _GLOBAL_NORM, "clipvalue")


@dataclasses.dataclass(frozen=True)
class Clipping:
    """How an optimizer clips.

    Attributes:
        optimizer: does it.
        kind: the argument that is set: "clipnorm", "global_clipnorm" or "clipvalue".
        limit: its value.
    """

    optimizer: keras.optimizers.Optimizer
    kind: str
    limit: float

    @classmethod
    def of(cls, optimizer: keras.optimizers.Optimizer) -> "Clipping | None":
        """An optimizer's; None if it does not clip."""
        for kind in _LIMITS:
            limit = getattr(optimizer, kind)
            if limit and limit > 0:
                return cls(optimizer, kind, limit)
        return None

    def clip(self, gradients: Sequence[Gradient], replicas: int = 1) -> list[Gradient]:
        """Clips gradients at limit / sqrt(replicas). What is not finite does not become finite."""
        if not gradients:
            return []
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        with self._limit(self.limit / replicas**0.5), tf.device(values[0].device):
            clipped = self.optimizer._clip_gradients(values)
            if self.kind == "clipvalue":  # which makes a number of infinity
                clipped = [
                    tf.where(tf.math.is_finite(v), c, v)
                    for v, c in zip(values, clipped, strict=True)
                ]
        return [
            tf.IndexedSlices(c, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else c
            for g, c in zip(gradients, clipped, strict=True)
        ]

    def clip_own(self, gradients: Sequence[Gradient], plan: Plan, replicas: int) -> list[Gradient]:
        """Clips one replica's gradients, but for those whose sum will be.

        Args:
            gradients: [variable].
            plan: for these variables; compresses some.
            replicas: how many exchange.
        """
        is_global = self.kind == _GLOBAL_NORM
        positions = range(len(gradients)) if is_global else plan.compressed
        return self._clip_some(gradients, positions, replicas)

    def clip_sums(self, gradients: Sequence[Gradient], plan: Plan) -> list[Gradient]:
        """Clips the sums that `clip_own` has left to it; arguments as there."""
        if self.kind == _GLOBAL_NORM:
            return list(gradients)
        return self._clip_some(gradients, sorted({*range(len(gradients))} - {*plan.compressed}))

    def _clip_some(self, gradients, positions, replicas=1):
        clipped = list(gradients)
        for i, gradient in zip(
            positions, self.clip([gradients[i] for i in positions], replicas), strict=True
        ):
            clipped[i] = gradient
        return clipped

    @contextlib.contextmanager
    def _limit(self, limit) -> Iterator[None]:
        # Past Keras's attribute tracking, which has no business with it.
        before = getattr(self.optimizer, self.kind)
        object.__setattr__(self.optimizer, self.kind, limit)
        try:
            yield
        finally:
            object.__setattr__(self.optimizer, self.kind, before)
