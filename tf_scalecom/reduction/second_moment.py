"""CLT-k with Adam's step, whose second moment is that of all gradients. In simulations, so far.

Adam behind CLT-k sees of an element the sum of many steps at once, and nothing in between: its mean
of squares is that of such sums. Here it is made of the replicas' gradients g_i, each times 1/n, in
every step t, whether they are sent or not,

    v' = beta_2 v + (1 - beta_2) sum_i g_i^2

which dense Adam has as well where gradients are mostly noise. All replicas must know the same v at
the sent elements; there are two ways below. What comes out is a step for plain SGD,

    s / (sqrt(v / (1 - beta_2^t)) + epsilon)

for the sum s of a sent element. Of a variable that travels dense, v is of the sums.
"""

import abc
import dataclasses
import itertools
import math

import numpy as np
import tensorflow as tf

from tf_scalecom.ops.words import flat_indices
from tf_scalecom.reduction import MethodOptions
from tf_scalecom.reduction.clt_k import CltK
from tf_scalecom.reduction.method import Pending, Update
from tf_scalecom.reduction.variables import ResidualVariable, SharedVariable
from tf_scalecom.wire.dtypes import DTYPES
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.report import ring_factor

_EPSILON = 1e-7


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """CLT-k's, and what this adds. See `method.Pending`.

    Attributes:
        pending: of CLT-k.
        plan: of all variables.
        state: [replica][variable], what is kept of each.
        step: of the call.
        num_replicas: of all processes.
        learnt: [replica][compressed variable], what there will be in place of all but the residual.
    """

    pending: Pending
    plan: Layout
    state: list[list[list[tf.Variable]]]
    step: tf.Tensor
    num_replicas: int
    learnt: list[list[list[tf.Tensor]]]

    @property
    def finite(self):
        return self.pending.finite


class _WithSecondMoment(CltK, abc.ABC):
    """What both ways have in common. A step is no part of a sum.

    Args:
        beta_2: decay of the mean of squares.
        step_limit: the largest step of an element, in learning rates, or None. What is beyond goes
            back to the residuals.
        what_to_send: as of `CltK`.
    """

    elementwise = bounded = conserves = has_slices = False

    def __init__(self, beta_2: float = 0.999, step_limit: float | None = None, **what_to_send):
        super().__init__(**what_to_send)
        self._beta_2 = beta_2
        self._step_limit = step_limit

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(options.beta_2, options.step_limit, **options.compression.get_config())

    def init(self, plan):
        return [
            (*own, *(self._kept(tensor, i) if own else [_zeros(tensor.shape, f"moment_{i}")]))
            for i, (own, tensor) in enumerate(zip(super().init(plan), plan.tensors, strict=True))
        ]

    def propose(self, gradients, plan, state, step, communicator):
        states = [self._by_variable(own, plan) for own in state]
        residuals = [[own[i][0] for i in plan.compressed] for own in states]
        pending = super().propose(gradients, plan, residuals, step, communicator)
        squares = [[tf.square(own[i]) for i in plan.compressed] for own in gradients]
        kept = [[own[i][1:] for i in plan.compressed] for own in states]
        learnt = self._learnt(squares, kept, pending, plan, communicator)
        return _Exchange(pending, plan, states, step, communicator.num_replicas, learnt)

    def finish(self, pending, finite, as_slices=False):
        plan, updates = pending.plan, super().finish(pending.pending, finite)
        correction = 1 - self._beta_2 ** (tf.cast(pending.step, tf.float32) + 1)
        changed = []  # [replica] of (variable, new value)
        for r, own in enumerate(pending.state):
            sums, steps, changes = updates[r].dense(plan), [], []
            for i, (kept, tensor) in enumerate(zip(own, plan.tensors, strict=True)):
                if tensor.is_dense:
                    new = [self._decayed(kept[0], tf.square(sums[i]))]
                    moment = new[0]
                else:
                    residual, *kept = kept
                    new = pending.learnt[r][plan.compressed.index(i)]
                    moment = self._moment(new, tensor)
                scale = tf.sqrt(moment / correction) + _EPSILON
                step = sums[i] / scale
                if not tensor.is_dense and self._step_limit is not None:
                    within = tf.clip_by_value(step, -self._step_limit, self._step_limit)
                    beyond = tf.where(within == step, 0.0, sums[i] - within * scale)
                    changes.append((residual, residual + beyond / pending.num_replicas))
                    step = within
                steps.append(step)
                changes += zip(kept, new, strict=True)
            changed.append(changes)
            updates[r] = Update(steps)
        for is_finite, changes in zip(finite, changed, strict=True):
            # Shared ones are one variable here: all read before the first is changed.
            for variable, value in changes:
                variable.assign(tf.where(is_finite, value, variable))
        return updates

    def _decayed(self, moment, squares):
        return self._beta_2 * moment + (1 - self._beta_2) * squares

    def _by_variable(self, state, plan):
        kept = iter(state)
        return [
            list(itertools.islice(kept, 1 if t.is_dense else 1 + self._kept_count))
            for t in plan.tensors
        ]

    # Variables beside a residual.
    _kept_count: int

    @abc.abstractmethod
    def _kept(self, tensor, position) -> list:
        """Makes them."""

    @abc.abstractmethod
    def _learnt(self, squares, kept, pending, plan, communicator) -> list[list[list[tf.Tensor]]]:
        """What will be in them: [replica][compressed variable].

        Args:
            squares: of the gradients, likewise.
            kept: they, likewise.
            pending: of CLT-k.
            plan: of all variables.
            communicator: joins the replicas.
        """

    @abc.abstractmethod
    def _moment(self, new, tensor) -> tf.Tensor:
        """v of a variable, of what will be in them; where it is sent, at least."""


class FactoredMomentTopK(_WithSecondMoment):
    """v of a matrix as in Adafactor: of means over its rows and columns, which all replicas sum.

    A vector's is one mean.
    """

    _kept_count = 2

    def _kept(self, tensor, position):
        rows, columns = _factor_shapes(tensor)
        return [_zeros(rows, f"rows_{position}"), _zeros(columns, f"columns_{position}")]

    def _learnt(self, squares, kept, pending, plan, communicator):
        sums = communicator.all_reduce(
            [[factor for square in own for factor in _factors(square)] for own in squares]
        )
        return [
            [
                [self._decayed(variable, next(factors)) for variable in of_variable]
                for of_variable in own
            ]
            for own, factors in zip(kept, map(iter, sums), strict=True)
        ]

    def _moment(self, new, tensor):
        rows, columns = new
        products = tf.math.divide_no_nan(rows[:, tf.newaxis] * columns, tf.reduce_mean(rows))
        if len(tensor.shape) < 2:
            return tf.broadcast_to(products[0], tensor.shape)
        return tf.reshape(products, tensor.shape)

    def report(self, plan, num_replicas, route):
        values = {i: sum(map(math.prod, _factor_shapes(plan.tensors[i]))) for i in plan.compressed}
        ring = ring_factor(num_replicas)
        return (
            super()
            .report(plan, num_replicas, route)
            .with_more({i: 4 * ring * count for i, count in values.items()})
        )


class SentMomentTopK(_WithSecondMoment):
    """v of a sent element, exactly, of squares that have waited as its gradients have.

    They go the way of the selected values, as many again.
    """

    _kept_count = 3

    def _kept(self, tensor, position):
        return [
            _SquaresVariable(tensor.shape, name=f"squares_{position}"),
            _zeros(tensor.shape, f"moment_{position}"),
            _zeros(tensor.shape, f"age_{position}"),
        ]

    def _learnt(self, squares, kept, pending, plan, communicator):
        waiting = [
            [variables[0] + square for variables, square in zip(own, new, strict=True)]
            for own, new in zip(kept, squares, strict=True)
        ]
        is_sent = [_sent_elements(pending, replica, plan) for replica in range(len(kept))]
        sums = communicator.all_reduce(
            [
                [tf.where(sent, own, 0.0) for sent, own in zip(of_replica, owns, strict=True)]
                for of_replica, owns in zip(is_sent, waiting, strict=True)
            ]
        )
        learnt = []
        for own, owns, of_replica, totals in zip(kept, waiting, is_sent, sums, strict=True):
            learnt.append([])
            for variables, mine, sent, total in zip(own, owns, of_replica, totals, strict=True):
                _, moment, age = variables
                decay = self._beta_2 ** (age + 1)
                now = decay * moment + (1 - self._beta_2) * total
                learnt[-1].append(
                    [
                        tf.where(sent, 0.0, mine),
                        tf.where(sent, now, moment),
                        tf.where(sent, 0.0, age + 1),
                    ]
                )
        return learnt

    def _moment(self, new, tensor):
        return new[1]

    def report(self, plan, num_replicas, route):
        more = ring_factor(num_replicas) * DTYPES[plan.value_dtype].bytes
        return (
            super()
            .report(plan, num_replicas, route)
            .with_more({i: more * plan.tensors[i].kept for i in plan.compressed})
        )


class _SquaresVariable(ResidualVariable):
    """Squares are no part of what has not been sent."""

    summable = False


def _zeros(shape, name):
    return SharedVariable(np.zeros(shape, np.float32), name)


def _factor_shapes(tensor):
    if len(tensor.shape) < 2:
        return (1,), (1,)
    columns = tensor.shape[-1]
    return (tensor.elements // columns,), (columns,)


def _factors(squares):
    """Means of each row, and of each column."""
    if len(squares.shape) < 2:
        return [tf.reduce_mean(squares)[tf.newaxis]] * 2
    matrix = tf.reshape(squares, [-1, squares.shape[-1]])
    return [tf.reduce_mean(matrix, 1), tf.reduce_mean(matrix, 0)]


def _sent_elements(pending, replica, plan) -> list[tf.Tensor]:
    """bool, in the shape of each compressed variable."""
    by_position: dict[int, tf.Tensor] = {}
    for sent in pending.sent:
        if sent.words:
            indices = flat_indices(sent.words[replica], sent.bucket.layout)
            by_position |= zip(sent.bucket.compressed, indices, strict=True)
    masks = []
    for i in plan.compressed:
        at = tf.cast(by_position[i], tf.int64)[:, tf.newaxis]
        flat = tf.scatter_nd(at, tf.ones(tf.shape(at)[:1], tf.int32), [plan.tensors[i].elements])
        masks.append(tf.reshape(flat > 0, plan.tensors[i].shape))
    return masks
