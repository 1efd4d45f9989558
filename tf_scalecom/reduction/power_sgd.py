"""PowerSGD (Vogels et al., NeurIPS 2019, arXiv 1905.13727): low rank, with error feedback.

One step on replica i of n for the matrix of one variable, residual e_i, gradient g_i:

    M_i  = g_i + e_i                                compensated
    P    = orthogonal basis of sum_i M_i Q          all-reduce of rows * rank values
    Q'   = sum_i M_i^T P                            all-reduce of columns * rank values
    g    = P Q'^T                                   reduced
    e_i' = M_i - g / n                              Q' starts the next step
"""

import dataclasses
import numbers
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom import ops
from tf_scalecom.reduction import MethodOptions
from tf_scalecom.reduction.dense import Dense
from tf_scalecom.reduction.method import Method, Update
from tf_scalecom.reduction.variables import ResidualVariable, SharedVariable
from tf_scalecom.wire.low_rank import LowRankPlan, low_rank_report, matrix_shape


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """A step; lists begin with [replica], and matrices and queries are of compressed variables."""

    plan: LowRankPlan
    state: Sequence[Sequence[tf.Variable]]
    matrices: list[list[tf.Tensor]]
    queries: list[list[tf.Tensor]]
    low_rank: list[list[tf.Tensor]]
    dense: list[list[tf.Tensor]]
    num_replicas: int
    finite: list[tf.Tensor]


@keras.saving.register_keras_serializable(package="tf_scalecom")
class PowerSGD(Method):
    """The low-rank rival. Its state is a residual and a shared query of each matrix.

    Args:
        rank: of the matrices that travel, an integer >= 1.
        seed: of the queries to begin with, an integer >= 0.

    Raises:
        ValueError: an argument is out of its range.
    """

    has_ramp = False

    def __init__(self, rank: int = 1, seed: int = 0):
        self._rank = _checked("rank", rank, least=1)
        self._seed = _checked("seed", seed, least=0)

    @classmethod
    def from_options(cls, options: MethodOptions):
        return cls(options.rank, options.seed)

    def get_config(self):
        return {"rank": self._rank, "seed": self._seed}

    def plan(self, variables, growth=1.0):
        return LowRankPlan(Dense().plan(variables).tensors, self._rank)

    def init(self, plan):
        rng = np.random.default_rng([self._seed, 0])
        made = [() for _ in plan.tensors]
        for i in plan.compressed:
            tensor = plan.tensors[i]
            query = rng.normal(size=(matrix_shape(tensor)[1], plan.rank)).astype(np.float32)
            made[i] = (
                ResidualVariable(tensor.shape, name=f"residual_{i}"),
                SharedVariable(query, name=f"query_{i}"),
            )
        return made

    def propose(self, gradients, plan, state, step, communicator):
        shapes = [matrix_shape(plan.tensors[i]) for i in plan.compressed]
        residuals, queries = ([own[kind::2] for own in state] for kind in range(2))
        matrices = [
            [
                tf.reshape(tf.cast(own[i], tf.float32) + m, shape)
                for i, m, shape in zip(plan.compressed, ms, shapes, strict=True)
            ]
            for own, ms in zip(gradients, residuals, strict=True)
        ]
        count = len(shapes)
        sums = communicator.all_reduce(
            [
                [
                    *(tf.matmul(m, q) for m, q in zip(ms, qs, strict=True)),
                    *(own[i] for i in _dense(plan)),
                ]
                for ms, qs, own in zip(matrices, queries, gradients, strict=True)
            ]
        )
        bases = [[_basis(product) for product in s[:count]] for s in sums]
        next_queries = communicator.all_reduce(
            [
                [tf.matmul(m, b, transpose_a=True) for m, b in zip(ms, bs, strict=True)]
                for ms, bs in zip(matrices, bases, strict=True)
            ]
        )
        low_rank = [
            [tf.matmul(b, q, transpose_b=True) for b, q in zip(bs, qs, strict=True)]
            for bs, qs in zip(bases, next_queries, strict=True)
        ]
        finite = [ops.all_finite([*s, *qs]) for s, qs in zip(sums, next_queries, strict=True)]
        return _Exchange(
            plan,
            state,
            matrices,
            next_queries,
            low_rank,
            [s[count:] for s in sums],
            communicator.num_replicas,
            finite,
        )

    def finish(self, pending, finite, as_slices=False):
        plan, updates = pending.plan, []
        for r, is_finite in enumerate(finite):
            gradients = dict(zip(_dense(plan), pending.dense[r], strict=True))
            for place, i in enumerate(plan.compressed):
                gradients[i] = tf.cast(
                    tf.reshape(pending.low_rank[r][place], plan.tensors[i].shape),
                    plan.tensors[i].dtype,
                )
            tf.cond(is_finite, lambda r=r: _commit(pending, r), lambda: None)
            updates.append(Update([gradients[i] for i in range(len(plan.tensors))]))
        return updates

    def report(self, plan, num_replicas, route):
        return low_rank_report(plan, num_replicas)


def _checked(name, value, least) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(
            f"`{name}` of PowerSGD: expected an integer >= {least}; received {value!r}. Correct "
            "the argument."
        )
    return int(value)


def _commit(pending, replica):
    own = pending.state[replica]
    for place in range(len(pending.plan.compressed)):
        residual, query = own[2 * place : 2 * place + 2]
        left = pending.matrices[replica][place] - (
            pending.low_rank[replica][place] / pending.num_replicas
        )
        residual.assign(tf.reshape(left, residual.shape))
        query.assign(pending.queries[replica][place])


def _basis(product):
    basis, _ = tf.linalg.qr(product)
    return basis


def _dense(plan) -> list[int]:
    return [i for i in range(len(plan.tensors)) if i not in plan.compressed]
