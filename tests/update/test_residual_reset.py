"""A step needs residual + gradient finite; no residual keeps steps from being taken for ever."""

import functools
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from collected_warnings import Collected
from digits import digest
from local_strategies import make_strategy

import tf_scalecom as sc
from tf_scalecom import ops

ELEMENTS = 2_000
HUGE = 2.5e38  # two of them are beyond float32


class Steps:
    """Steps of one optimizer on known gradients, one for each of all replicas."""

    def __init__(self, strategy, replicas, dtype="float32", accumulate=None, **arguments):
        self.strategy = strategy
        self.replicas = replicas
        with strategy.scope():
            self.variable = keras.Variable(np.zeros(ELEMENTS), dtype=dtype, name="w")
            inner = keras.optimizers.SGD(1e-3, gradient_accumulation_steps=accumulate)
            self.optimizer = sc.ScaleComOptimizer(inner, 100, **arguments)
            self.optimizer.build([self.variable])
        self._random = np.random.default_rng(0)

        def apply(gradients):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            gradient = tf.cast(gradients[replica], dtype)
            self.optimizer.apply([gradient], [self.variable])

        self._step = tf.function(lambda gradients: strategy.run(apply, args=(gradients,)))

    def make(self, steps=1, element=0.0, replica=-1):
        """Random gradients, and `element` in one element of one replica's."""
        for _ in range(steps):
            gradients = self._random.normal(size=(self.replicas, ELEMENTS)).astype(np.float32)
            gradients[:, 5] = 0
            gradients[replica, 5] = element
            self._step(tf.constant(gradients))

    @property
    def skipped(self):
        return int(self.optimizer.skipped_steps.numpy())

    @property
    def residual(self):
        """[local replica, element]."""
        (parts,) = self.optimizer.residuals.values()
        return np.stack(parts)

    def fill_residual(self, value):
        """Writes to one element of the last local replica's residual."""
        (residual,) = self.optimizer.residual_variables
        part = self.strategy.experimental_local_results(residual.value)[-1]
        part.assign(tf.tensor_scatter_nd_update(part, [[5]], [value]))


@pytest.fixture
def steps():
    return functools.partial(Steps, make_strategy("scalecom_ops"), 2)


@pytest.mark.parametrize("route", ["own_ops", "scalecom_ops"])
def test_finite_gradients_that_overflow_the_residual_skip_one_step(route):
    steps = Steps(make_strategy(route), 2)
    steps.make(8)
    steps.make(element=HUGE)
    before = steps.residual
    steps.make(element=HUGE)
    assert steps.skipped == 1
    np.testing.assert_array_equal(steps.residual, before)
    steps.make(40)
    assert steps.skipped == 1
    assert np.isfinite(steps.residual).all() and np.isfinite(steps.variable.numpy()).all()
    assert steps.optimizer.reset_elements == 0


@pytest.mark.parametrize("accumulate", [None, 3])
def test_a_large_residual_and_large_gradients_do_not_skip_for_ever(steps, accumulate):
    steps = steps(accumulate=accumulate)
    every = accumulate or 1
    steps.fill_residual(1.3 * HUGE)
    with Collected() as collected:
        steps.make(24 * every, element=HUGE / every)
    assert 2 <= steps.skipped <= 16
    assert steps.optimizer.reset_elements >= 1
    assert ["residuals were set to 0" in text for text in collected.texts] == [True], "once"
    steps.make(8 * every)
    assert steps.skipped <= 17
    assert np.isfinite(steps.residual).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_residual_that_is_not_finite_is_reset_counted_and_said(steps, value):
    steps = steps()
    steps.make(3)
    steps.fill_residual(value)
    others = np.delete(steps.residual, 5, axis=1)
    with Collected() as collected:
        steps.make()
    assert steps.skipped == 1 and steps.optimizer.reset_elements == 1
    assert "1 elements of this worker's residuals were set to 0" in collected.texts[0]
    assert steps.residual[-1, 5] == 0
    np.testing.assert_array_equal(np.delete(steps.residual, 5, axis=1), others)
    steps.make(8)
    assert steps.skipped == 1


def test_a_warm_up_does_not_look_at_the_residual(steps):
    steps = steps(warmup_steps=4)
    steps.fill_residual(np.inf)
    steps.make(4)
    assert steps.skipped == 0
    steps.make(4)
    assert steps.skipped == 1 and steps.optimizer.reset_elements == 1


def test_a_gradient_that_is_not_finite_resets_nothing(steps):
    steps = steps()
    steps.fill_residual(1e30)
    steps.make(30, element=np.nan, replica=0)
    assert steps.skipped == 30 and steps.optimizer.reset_elements == 0
    assert steps.residual[-1, 5] == np.float32(1e30)


def overflow_and_recover(strategy, **arguments):
    """The last worker alone has huge gradients, and later a residual from a damaged file."""
    steps = Steps(strategy, strategy.num_replicas_in_sync, **arguments)
    steps.make(2)
    steps.make(10, element=HUGE)
    history = [steps.skipped, steps.optimizer.reset_elements]
    steps.make(6)
    if strategy.extended._id_in_cluster == strategy.extended._num_workers - 1:
        steps.fill_residual(np.nan)
    steps.make(6)
    if steps.replicas > 1:  # one has nothing to exchange, and does not look at its residual
        assert np.isfinite(steps.residual).all()
    return digest([steps.variable]), steps.skipped, history


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_skip_together_and_each_resets_its_own(cluster, workers):
    results = cluster(workers).run(overflow_and_recover, timeout=120)
    assert len({(weights, skipped) for weights, skipped, _ in results}) == 1
    resets = [reset for *_, (_, reset) in results]
    if workers == 1:
        assert results[0][1] == 0 and resets == [0]  # nothing is exchanged
    else:
        assert 0 < results[0][2][0] < 8
        assert resets[-1] >= 1 and not any(resets[:-1])


def test_hierarchical_workers_reset_theirs(cluster):
    split = cluster(2, logical_cpus=2)
    results = split.run(overflow_and_recover, hierarchical=True, timeout=120)
    assert len({(weights, skipped) for weights, skipped, _ in results}) == 1
    assert [reset > 0 for *_, (_, reset) in results] == [False, True]


def train_with_kernels(strategy, names, dtype, value_dtype):
    """Weights after some steps, with kernels of the worker's own; gradients beyond the dtype."""
    os.environ[ops.BACKEND_VARIABLE] = names[strategy.extended._id_in_cluster]
    ops.backend.cache_clear()
    try:
        steps = Steps(
            strategy, strategy.num_replicas_in_sync, dtype, value_dtype=value_dtype, beta=0.9
        )
        steps.make(6, element=6e4)
        return ops.backend()[0].name, digest([steps.variable]), steps.skipped
    finally:
        del os.environ[ops.BACKEND_VARIABLE]
        ops.backend.cache_clear()


@pytest.mark.parametrize(
    ("dtype", "value_dtype"), [("float16", "float32"), ("bfloat16", "float16")]
)
def test_native_and_plain_kernels_make_one_cluster(cluster, dtype, value_dtype):
    mixed = cluster(2).run(train_with_kernels, ["native", "xla"], dtype, value_dtype, timeout=90)
    assert [name for name, *_ in mixed] == ["native", "xla"]
    alike = cluster(2).run(train_with_kernels, ["native"] * 2, dtype, value_dtype, timeout=90)
    assert {(weights, skipped) for _, weights, skipped in mixed + alike} == {(mixed[0][1], 0)}
