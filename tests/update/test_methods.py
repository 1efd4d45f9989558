"""Every method of reduction under the optimizer, on replicas of one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from local_strategies import make_strategy

import tf_scalecom as sc
from tf_scalecom.reduction import METHODS, MethodOptions, method_class
from tf_scalecom.wire.config import CompressionConfig

SHAPES = ((61, 50), (10,))
STEPS = 4


class ByMethod(sc.ScaleComOptimizer):
    """A `ScaleComOptimizer` that reduces by any method."""

    def __init__(self, inner, name):
        super().__init__(inner, compression_ratio=20)
        options = MethodOptions(CompressionConfig(compression_ratio=20), rank=2, seed=1)
        self._chosen = method_class(name).from_options(options)

    def _method(self):
        return self._chosen


@pytest.mark.parametrize("route", ["own_ops", "scalecom_ops"])
@pytest.mark.parametrize("name", METHODS)
def test_what_is_not_sent_is_kept_and_replicas_stay_alike(name, route):
    strategy = make_strategy(route)
    replicas = strategy.num_replicas_in_sync
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=(STEPS, replicas, *s)).astype(np.float32) for s in SHAPES]
    with strategy.scope():
        variables = [keras.Variable(np.zeros(s, np.float32)) for s in SHAPES]
        # At rate 1, from zero, the variables show the sum of all that was reduced, negated.
        optimizer = ByMethod(keras.optimizers.SGD(1.0), name)
        optimizer.build(variables)

    @tf.function
    def step(t):
        def replica_step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply([tf.gather(g, t)[replica] for g in gradients], variables)

        strategy.run(replica_step)

    for t in range(STEPS):
        step(tf.constant(t))
    for variable in variables:
        first, *others = strategy.experimental_local_results(variable.value)
        for other in others:
            np.testing.assert_array_equal(first.numpy(), other.numpy())
    held = {path: sum(parts) for path, parts in optimizer.residuals.items()}
    assert (name == "dense") == (not held)
    for variable, given in zip(variables, gradients, strict=True):
        total = given.sum(axis=(0, 1))
        left = held.get(variable.path, np.zeros_like(total))
        np.testing.assert_allclose(left - variable.numpy(), total, rtol=0, atol=1e-4)
    report = optimizer.compression_report()
    assert (report.ratio > 5) == (name != "dense")
    assert report.bytes_sent == pytest.approx(sum(r.bytes_sent for r in report.rows), rel=0.1)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_that_is_not_finite_changes_nothing(name):
    strategy = make_strategy("scalecom_ops")
    with strategy.scope():
        variable = keras.Variable(np.zeros(SHAPES[0], np.float32))
        optimizer = ByMethod(keras.optimizers.SGD(1.0), name)
        optimizer.build([variable])

    @tf.function
    def step(value):
        def replica_step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            one = tf.where(replica == 1, value, 1.0)
            optimizer.apply([tf.fill(SHAPES[0], one)], [variable])

        strategy.run(replica_step)

    def state():
        kept = [v for own in optimizer._state.variables for v in own]
        parts = [strategy.experimental_local_results(v.value) for v in [variable, *kept]]
        return [part.numpy() for of_replicas in parts for part in of_replicas]

    step(tf.constant(2.0))
    before = state()
    step(tf.constant(float("nan")))
    assert int(optimizer.skipped_steps.numpy()) == 1
    for now, then in zip(state(), before, strict=True):
        np.testing.assert_array_equal(now, then)
