"""The way that gradients take under a strategy: asked once, by the step and by the report."""

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from tf_scalecom import ops
from tf_scalecom.reduction.communicator import ListCommunicator, StrategyCommunicator
from tf_scalecom.reduction.exchange import Exchanged, exchange
from tf_scalecom.update import hierarchy
from tf_scalecom.wire.route import ALL_REDUCE, COLLECTIVES, Route


class StrategyRoute(NamedTuple):
    """How replicas exchange under a strategy.

    Attributes:
        num_replicas: those that exchange: workers, if it is hierarchical.
        wire: what the bytes depend on.
        words: what it is, for the log; a warning, if it may be by mistake.
        exchange: as `reduction.exchange.exchange`, called with the per-replica ids in place of a
            communicator.
    """

    num_replicas: int
    wire: Route
    words: str
    exchange: Callable[..., Exchanged]
    may_be_a_mistake: bool = False

    def log(self) -> None:
        """Says once in a process which way is taken, and which kernels are in use."""
        _log_once(logging.WARNING if self.may_be_a_mistake else logging.INFO, self.words)
        ops.backend()  # one replica needs none, but whoever tries an installation has one


def collectives(strategy: tf.distribute.Strategy):
    """The strategy's `ScaleComAllReduce`, which stands above this room; None if it has others."""
    ops = getattr(strategy.extended, "_cross_device_ops", None)
    return ops if hasattr(ops, "exchange") else None


def route(strategy: tf.distribute.Strategy, hierarchical: bool) -> StrategyRoute:
    """The way under a strategy.

    Args:
        strategy: supported, see `supported`.
        hierarchical: whether the replicas of a worker sum first.
    """
    num_replicas = strategy.num_replicas_in_sync
    ops = collectives(strategy)
    wire = ALL_REDUCE
    if ops is not None:
        wire = Route(True, ops.bucket_bytes)
    elif num_replicas == 1:
        wire = COLLECTIVES  # what it would be with more
    if num_replicas == 1:
        words = "tf_scalecom: one replica, nothing to exchange: gradients pass through."
        knows_no_cluster = not os.environ.get("TF_CONFIG")
        if knows_no_cluster:
            words += (
                " For several workers set TF_CONFIG on each, or start the script by `python -m "
                "tf_scalecom run -n 2 SCRIPT`."
            )
        return StrategyRoute(1, wire, words, _alone, may_be_a_mistake=knows_no_cluster)
    if hierarchical:
        words = (
            f"tf_scalecom: {num_replicas} replicas exchange by ScaleComAllReduce, each worker's "
            "as one."
        )
        return StrategyRoute(
            hierarchy.num_workers(strategy), wire, words, _hierarchical(strategy.extended)
        )
    if ops is not None:
        words = f"tf_scalecom: {num_replicas} replicas exchange by ScaleComAllReduce."
        return StrategyRoute(num_replicas, wire, words, _by_ops(ops))
    words = f"tf_scalecom: {num_replicas} replicas exchange by the strategy's own all-reduce."
    return StrategyRoute(num_replicas, wire, words, _by_strategy(strategy))


def _alone(gradients, plan, state, step, replica_ids, method, as_slices):
    return exchange(gradients, plan.without_compression(), state, step, ListCommunicator(1), method)


def _hierarchical(extended):
    def exchange_between_workers(gradients, plan, state, step, replica_ids, method, as_slices):
        return hierarchy.exchange(gradients, plan, state, step, extended, method, as_slices)

    return exchange_between_workers


def _by_ops(ops):
    def exchange_by_ops(gradients, plan, state, step, replica_ids, method, as_slices):
        return ops.exchange(gradients, plan, state, step, method, as_slices)

    return exchange_by_ops


def _by_strategy(strategy):
    def exchange_by_strategy(gradients, plan, state, step, replica_ids, method, as_slices):
        communicator = StrategyCommunicator(strategy, replica_ids)
        return exchange(gradients, plan, state, step, communicator, method, as_slices)

    return exchange_by_strategy


@functools.cache
def _log_once(level, message):
    logging.log(level, message)
