"""What a method of reduction is: how the gradients of all replicas become one.

    plan = method.plan(variables)               once, in plain Python
    variables = method.init(plan)               once, what it keeps from step to step
    pending = method.propose(gradients, plan, state, step, communicator)
    updates = method.finish(pending, finite)    every step

Training and simulation use the same objects: a communicator says who the replicas are. Lists begin
with [replica], the replicas of this process.
"""

import abc
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import keras
import tensorflow as tf

from tf_scalecom.reduction import MethodOptions
from tf_scalecom.reduction.communicator import Communicator
from tf_scalecom.wire.plan import Plan
from tf_scalecom.wire.report import CompressionReport
from tf_scalecom.wire.route import Route

# What travels of one variable: a tensor, dense; or, sparse, IndexedSlices of its first axis or, of
# a compressed one, of the variable as a vector, all else being zero.
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


class Update(NamedTuple):
    """What one replica has of an exchange.

    Attributes:
        gradients: [variable], the sum over all replicas, bit-equal on all of them.
        own: [variable], not zero where an element of this replica's took part; None if that is
            where the sum is not zero, on all replicas alike.
    """

    gradients: list[Gradient]
    own: list[tf.Tensor] | None = None

    def dense(self, plan: Plan) -> list[tf.Tensor]:
        """All elements of all gradients, in the variables' shapes."""
        return self._dense_at(range(len(plan.tensors)), plan)

    def for_optimizer(self, plan: Plan) -> list[Gradient]:
        """What Keras can apply: all elements of what was compressed; the others as they are."""
        return self._dense_at(plan.compressed, plan)

    def _dense_at(self, positions, plan):
        gradients = list(self.gradients)
        for i in positions:
            if isinstance(gradients[i], tf.IndexedSlices):
                elements = tf.convert_to_tensor(gradients[i])
                gradients[i] = tf.reshape(elements, plan.tensors[i].shape)
        return gradients


class Pending(Protocol):
    """What a method has sent and received in a step, all replicas' parts of it.

    Attributes:
        finite: bool scalar per replica, equal on all: whether the step can be taken. False where a
            gradient, or what the method adds to it, was not finite on some replica.
    """

    finite: list[tf.Tensor]


class Method(abc.ABC):
    """A method of reduction. It holds no state: that is in variables, for which it asks.

    Attributes:
        elementwise: whether its plans are `Layout`s by which an element travels as it is or not at
            all. The simulator judges the choice of elements then, and can take from a momentum what
            was sent.
        bounded: whether all replicas send the elements of one choice, the leader's or a better
            one, for which the paper's bound of the contraction holds.
        conserves: whether what comes out is part of the sum, and what the replicas keep the rest.
        has_ramp: whether a warm-up may be a ramp, in which its plans grow.
        has_slices: whether it can give the sums of compressed variables as IndexedSlices.
    """

    elementwise = False
    bounded = False
    conserves = True
    has_ramp = True
    has_slices = False

    @classmethod
    @abc.abstractmethod
    def from_options(cls, options: MethodOptions) -> "Method":
        """The method that a user has asked for."""

    def get_config(self) -> dict:
        """Its arguments, as the constructor takes them, of one that users can name."""
        return {}

    @classmethod
    def from_config(cls, config: dict) -> "Method":
        """The reverse."""
        return cls(**config)

    def excluded(self, paths: Sequence[str]) -> frozenset[int]:
        """Positions of the variables whose IndexedSlices stay sparse, of their paths.

        Raises:
            ValueError: the method's arguments name others.
        """
        return frozenset()

    @abc.abstractmethod
    def plan(self, variables: Sequence, growth: float = 1.0) -> Plan:
        """Plans the exchange of variables.

        Args:
            variables: what has `path` or `name`, `shape` and `dtype`, in the order in which their
                gradients will come.
            growth: how far compression has grown in a ramp, in [0, 1]. Any growth compresses the
                same variables.

        Raises:
            ValueError: the method's arguments do not fit the variables.
        """

    @abc.abstractmethod
    def init(self, plan: Plan) -> list[tuple[keras.Variable, ...]]:
        """Makes what the method keeps, of `reduction.variables`: [variable], () of a dense one."""

    @abc.abstractmethod
    def propose(
        self,
        gradients: Sequence[Sequence[Gradient]],
        plan: Plan,
        state: Sequence[Sequence[tf.Variable]],
        step: tf.Tensor,
        communicator: Communicator,
    ) -> Pending:
        """Does all communication of a step; changes nothing.

        Args:
            gradients: [replica][variable], in the variable's shape and dtype.
            plan: for these variables; it compresses some, as a plan that does not is `Dense`'s.
            state: [replica], what `init` has made for them, one variable's after the other's.
            step: integer scalar, equal on all replicas.
            communicator: joins the replicas.
        """

    @abc.abstractmethod
    def finish(
        self, pending: Pending, finite: Sequence[tf.Tensor], as_slices: bool = False
    ) -> list[Update]:
        """Commits the state; where not finite, the old state stands.

        Args:
            pending: of `propose`, once.
            finite: bool scalar per replica, equal on all. Where false updates are not to be used.
            as_slices: whether sums of compressed variables are wanted as IndexedSlices, from a
                method that has such.

        Returns:
            [replica].
        """

    @abc.abstractmethod
    def report(self, plan: Plan, num_replicas: int, route: Route) -> CompressionReport:
        """Counts what a replica transmits in a step, the mean over a cycle of leaders."""

    def bytes_sent(self, plan: Plan, num_replicas: int, route: Route) -> float:
        """Payload that a replica transmits in a step, the mean over a cycle of leaders."""
        return self.report(plan, num_replicas, route).bytes_sent
