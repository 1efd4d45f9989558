"""Every method of reduction under the optimizer, on replicas of one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from local_strategies import REPLICA_ROUTES, make_strategy

import tf_scalecom as sc
from tf_scalecom.reduction import METHODS, MethodOptions, communicator, method_class
from tf_scalecom.reduction.clt_k import CltK
from tf_scalecom.reduction.method import Update
from tf_scalecom.reduction.variables import is_summable
from tf_scalecom.update.route import route as route_under
from tf_scalecom.wire.config import CompressionConfig

SHAPES = ((61, 50), (10,), (61, 50))
STEPS = 4


def by_method(inner, method, **arguments):
    """An optimizer that reduces by any method."""
    options = MethodOptions(CompressionConfig(compression_ratio=20), rank=2, seed=1)
    return sc.CompressedOptimizer(inner, method.from_options(options), **arguments)


def trained(strategy, method, **arguments):
    """The optimizer after some steps, its variables, their gradients [step, replica, ...]."""
    replicas = strategy.num_replicas_in_sync
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=(STEPS, replicas, *s)).astype(np.float32) for s in SHAPES]
    with strategy.scope():
        variables = [keras.Variable(np.zeros(s, np.float32)) for s in SHAPES]
        # At rate 1, from zero, the variables show the sum of all that was reduced, negated.
        optimizer = by_method(keras.optimizers.SGD(1.0), method, **arguments)
        optimizer.build(variables)

    @tf.function
    def step(t):
        def replica_step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply([tf.gather(g, t)[replica] for g in gradients], variables)

        strategy.run(replica_step)

    for t in range(STEPS):
        step(tf.constant(t))
    return optimizer, variables, gradients


@pytest.mark.parametrize("route", REPLICA_ROUTES)
@pytest.mark.parametrize("name", METHODS)
def test_what_is_not_sent_is_kept_and_replicas_stay_alike(name, route):
    strategy = make_strategy(route)
    optimizer, variables, gradients = trained(strategy, method_class(name))
    for variable in variables:
        first, *others = strategy.experimental_local_results(variable.value)
        for other in others:
            np.testing.assert_array_equal(first.numpy(), other.numpy())
    method, plan = optimizer._state.method, optimizer._state.plan
    held = {path: sum(parts) for path, parts in optimizer.residuals.items()}
    for i, (variable, given) in enumerate(zip(variables, gradients, strict=True)):
        keeps = any(map(is_summable, optimizer._state.variables[i]))
        assert keeps == (variable.path in held)
        if not method.conserves:
            continue
        total = given.sum(axis=(0, 1))
        if keeps:
            kept = held[variable.path]
            np.testing.assert_allclose(kept - variable.numpy(), total, rtol=0, atol=1e-4)
        elif i not in plan.compressed:
            np.testing.assert_allclose(-variable.numpy(), total, rtol=0, atol=1e-4)
    way = strategy.num_replicas_in_sync, route_under(strategy, hierarchical=False).wire
    report = optimizer.compression_report()
    assert report.bytes_sent == method.bytes_sent(plan, *way)
    assert report.bytes_sent == pytest.approx(sum(r.bytes_sent for r in report.rows), rel=0.1)
    assert (report.bytes_sent < report.bytes_dense) == bool(plan.compressed)


class InFlatSlices(CltK):
    """A method whose sums are sparse: elements of a variable as a vector."""

    def finish(self, pending, finite, as_slices=False):
        updates = super().finish(pending, finite)
        return [Update([self._flat(g) for g in update.gradients]) for update in updates]

    def _flat(self, gradient):
        if gradient.shape != SHAPES[0]:
            return gradient
        values = tf.reshape(gradient, [-1])
        indices = tf.where(values != 0)[:, 0]
        return tf.IndexedSlices(tf.gather(values, indices), indices, tf.shape(values))


@pytest.mark.parametrize("warmup_steps", [0, 1])
def test_sums_may_be_sparse(warmup_steps):
    strategy = make_strategy("scalecom_ops")
    _, expected, _ = trained(strategy, CltK, warmup_steps=warmup_steps)
    _, got, _ = trained(strategy, InFlatSlices, warmup_steps=warmup_steps)
    for variable, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), other.numpy())


def test_an_unknown_method_is_refused_by_name():
    with pytest.raises(ValueError, match=r"one of dense, clt_k, .*; received 'nope'\. Take"):
        method_class("nope")


def test_cross_device_ops_want_the_method_of_a_plan_that_is_not_clt_ks():
    plan = method_class("power_sgd")().plan([keras.Variable(np.zeros(SHAPES[0], np.float32))])
    ops = sc.ScaleComAllReduce.for_devices(["CPU:0", "CPU:1"])
    with pytest.raises(ValueError, match=r"expected a Layout.*received a LowRankPlan\. Give"):
        ops.exchange([[tf.zeros(SHAPES[0])]] * 2, plan, [[]] * 2, tf.constant(0))


@pytest.mark.parametrize("name", METHODS)
def test_a_step_that_is_not_finite_changes_nothing(name):
    strategy = make_strategy("scalecom_ops")
    with strategy.scope():
        variable = keras.Variable(np.zeros(SHAPES[0], np.float32))
        optimizer = by_method(keras.optimizers.SGD(1.0), method_class(name))
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


METHODS_OF_USERS = {
    "CltK": sc.methods.CltK(20, 0.5, exclude="bias", chunk_keep=2, value_dtype="bfloat16"),
    "SharesTopK": sc.methods.SharesTopK({"kernel": 20, ".*": 4}),
    "OwnersTopK": sc.methods.OwnersTopK("auto", value_dtype="float16"),
    "PowerSGD": sc.methods.PowerSGD(rank=3, seed=7),
}


@pytest.mark.parametrize("name", METHODS_OF_USERS)
def test_an_optimizer_is_the_same_from_its_config(name):
    method = METHODS_OF_USERS[name]
    optimizer = sc.CompressedOptimizer(
        keras.optimizers.Adam(0.1, beta_1=0.0), method, warmup_steps=7, name="mine"
    )
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again.method) is type(method)
    assert again.method.get_config() == method.get_config()
    assert again.get_config() == optimizer.get_config()
    assert set(METHODS_OF_USERS) == set(sc.methods.__all__)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda inner: sc.CompressedOptimizer(inner, "PowerSGD"), r"received 'PowerSGD'\. Pass"),
        (
            lambda inner: sc.CompressedOptimizer(inner, sc.methods.PowerSGD(), 5, warmup="ramp"),
            'expected "dense" with PowerSGD.*received "ramp"',
        ),
        (lambda _: sc.methods.PowerSGD(rank=0), "expected an integer >= 1; received 0"),
        (lambda _: sc.methods.PowerSGD(rank=True), "expected an integer >= 1; received True"),
        (lambda _: sc.methods.PowerSGD(seed=-1), "expected an integer >= 0; received -1"),
        (
            lambda _: sc.methods.OwnersTopK(selection="exact"),
            r"OwnersTopK: expected a selection of \('chunk',\); received 'exact'",
        ),
        (lambda _: sc.methods.SharesTopK(beta=0), "`beta`.*received 0"),
    ],
)
def test_what_a_method_cannot_do_is_refused(make, expected):
    with pytest.raises(ValueError, match=expected):
        make(keras.optimizers.SGD())


@pytest.mark.parametrize("name", sc.methods.__all__)
def test_rows_of_a_gradient_are_as_good_as_all_of_it(name):
    """The sparse gradient of an embedding, whose number of rows no graph knows."""
    strategy = make_strategy("scalecom_ops")

    def weights_after_a_step(is_sparse):
        with strategy.scope():
            table = keras.Variable(np.zeros((203, 31), np.float32))
            optimizer = sc.CompressedOptimizer(
                keras.optimizers.SGD(1.0), getattr(sc.methods, name)()
            )
            optimizer.build([table])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def step(rows):
            def on_replica():
                values = tf.ones([tf.size(rows), 31]) * tf.cast(rows, tf.float32)[:, tf.newaxis]
                gradient = tf.IndexedSlices(values, rows, tf.shape(table.value))
                optimizer.apply([gradient if is_sparse else tf.convert_to_tensor(gradient)])

            strategy.run(on_replica)

        step(tf.constant([3, 9, 3, 202], tf.int64))
        return table.numpy()

    sparse, dense = weights_after_a_step(True), weights_after_a_step(False)
    assert sparse.any()
    np.testing.assert_array_equal(sparse, dense)


def test_names_of_messages_are_told_apart():
    assert not communicator._keys_clash(range(10))
    assert not communicator._keys_clash(range(8, 16))
    assert communicator._keys_clash(range(12))
    assert communicator._keys_clash([2, 21])


def test_where_names_clash_owners_are_handed_the_same(monkeypatch):
    strategy = make_strategy("scalecom_ops")
    _, expected, _ = trained(strategy, sc.methods.OwnersTopK)
    monkeypatch.setattr(communicator, "_keys_clash", lambda replica_ids: True)
    _, got, _ = trained(strategy, sc.methods.OwnersTopK)
    for variable, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), other.numpy())
