"""Clipping: of the sum of the gradients, as one process does; before compression, of each one's."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from local_strategies import make_strategy

import tf_scalecom as sc

SGD = keras.optimizers.SGD
# Each far below what the gradients have, and told from clipping each replica's own by far.
LIMITS = {"clipnorm": 0.5, "clipvalue": 0.3, "global_clipnorm": 0.6}
SHAPES = ((40, 50), (10,))  # compressed, and dense because small
KINDS = pytest.mark.parametrize("kind", LIMITS)


def gradients_of(replica, step=0):
    rng = np.random.default_rng([replica, step])
    return [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]


def sums(replicas, step=0):
    return [sum(g) for g in zip(*(gradients_of(r, step) for r in range(replicas)), strict=True)]


def clipped(kind, gradients, share=1.0):
    """What Keras's documentation says of each limit, here of its `share`."""
    limit = LIMITS[kind] * share
    if kind == "clipvalue":
        return [np.clip(g, -limit, limit) for g in gradients]
    norms = [np.linalg.norm(g) for g in gradients]
    if kind == "global_clipnorm":
        norms = [np.linalg.norm(norms)] * len(gradients)
    return [g * min(1, limit / norm) for g, norm in zip(gradients, norms, strict=True)]


def plain(inner):
    return inner


def scaled(inner):
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)


def ratio_1(inner):
    return sc.ScaleComOptimizer(inner, 1)


def scaled_ratio_1(inner):
    return scaled(ratio_1(inner))


def warmup(inner):
    return sc.ScaleComOptimizer(inner, 10, warmup_steps=100)


WAYS = (plain, scaled, ratio_1, scaled_ratio_1, warmup)


def train(strategy, wrap, kind, steps=2, dtype="float32", **arguments):
    """Steps of known gradients, by replica; returns each local replica's weights.

    At rate 1 from zero they show what was applied. A third variable has no gradient.
    """
    with strategy.scope():
        trained = [keras.Variable(np.zeros(s), dtype=dtype) for s in (*SHAPES, (7,))]
        inner = SGD(1.0, momentum=0.5, **{kind: LIMITS[kind]}, **arguments)
        optimizer = wrap(inner)
        optimizer.build(trained)
    replicas = range(strategy.num_replicas_in_sync)
    by_step = [[gradients_of(r, t) for r in replicas] for t in range(steps)]
    given = [np.array([[g[i] for g in row] for row in by_step]) for i in range(len(SHAPES))]

    @tf.function
    def step(number):
        def replica_step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            gradients = [
                tf.cast(optimizer.scale_loss(tf.constant(table)[number, replica]), dtype)
                for table in given
            ]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that one has no gradient
                optimizer.apply([*gradients, None], trained)

        strategy.run(replica_step)

    for number in range(steps):
        step(tf.constant(number))
    parts = [strategy.experimental_local_results(v.value) for v in trained]
    return [
        [tf.cast(p, tf.float32).numpy() for p in replica] for replica in zip(*parts, strict=True)
    ]


def in_one_process(kind, replicas, steps=2, **arguments):
    trained = [keras.Variable(np.zeros(s, np.float32)) for s in SHAPES]
    optimizer = SGD(1.0, momentum=0.5, **{kind: LIMITS[kind]}, **arguments)
    optimizer.build(trained)
    for number in range(steps):
        optimizer.apply([tf.constant(s) for s in sums(replicas, number)], trained)
    return [v.numpy() for v in trained]


def assert_as_in_one_process(per_replica, expected, tolerance=1e-6):
    for weights in per_replica:
        *got, without = weights
        for mine, first, right in zip(got, per_replica[0], expected, strict=False):
            np.testing.assert_array_equal(mine, first)
            np.testing.assert_allclose(mine, right, rtol=tolerance, atol=tolerance)
        assert not without.any()


@KINDS
@pytest.mark.parametrize("wrap", WAYS)
def test_the_sum_is_clipped_where_all_of_it_travels(wrap, kind):
    got = train(make_strategy("scalecom_ops"), wrap, kind)
    assert_as_in_one_process(got, in_one_process(kind, 2))


@KINDS
def test_the_accumulated_mean_is_clipped(kind):
    got = train(
        make_strategy("scalecom_ops"), ratio_1, kind, steps=4, gradient_accumulation_steps=2
    )
    assert_as_in_one_process(got, in_one_process(kind, 2, steps=4, gradient_accumulation_steps=2))


@pytest.mark.parametrize(
    "conditional",
    [{"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 2}],
    ids=lambda arguments: list(arguments)[-1],
)
def test_what_keras_has_a_condition_for_is_wrapped_or_refused(conditional):
    strategy = make_strategy("scalecom_ops")
    with pytest.raises(ValueError, match=rf"expected `{list(conditional)[-1]}=None`.* received 2"):
        train(strategy, plain, "clipnorm", **conditional)
    got = train(strategy, ratio_1, "clipnorm", steps=4, **conditional)
    assert_as_in_one_process(got, in_one_process("clipnorm", 2, steps=4, **conditional))


@KINDS
def test_variables_of_float16_are_clipped(kind):
    for wrap in (plain, ratio_1):
        got = train(make_strategy("scalecom_ops"), wrap, kind, dtype="float16")
        assert_as_in_one_process(got, in_one_process(kind, 2), tolerance=2e-3)


@pytest.mark.slow
@KINDS
def test_elsewhere_plain_optimizers_clip_as_keras_has_it(kind):
    own, _ = train(make_strategy("own_ops"), plain, kind, steps=1)
    expected = [clipped(kind, gradients_of(replica)) for replica in range(2)]
    for mine, *parts in zip(own, *expected, strict=False):
        np.testing.assert_allclose(-mine, sum(parts), rtol=1e-5, atol=1e-6)
    assert_as_in_one_process(
        train(make_strategy("own_ops"), ratio_1, kind), in_one_process(kind, 2)
    )


@KINDS
@pytest.mark.parametrize("wrap", [plain, functools.partial(sc.ScaleComOptimizer, exclude="")])
def test_slices_are_clipped_as_in_one_process(wrap, kind):
    """Its norm is that of the rows before those of one word are summed."""
    ids, rows = [[1, 1, 3], [1, 2, 2]], np.float32(np.arange(24).reshape(2, 3, 4) / 6)
    strategy = make_strategy("scalecom_ops")
    results = []
    for is_alone in (True, False):
        with strategy.scope() if not is_alone else tf.distribute.get_strategy().scope():
            table = keras.Variable(np.zeros((5, 4), np.float32))
            inner = SGD(1.0, **{kind: LIMITS[kind]})
            optimizer = inner if is_alone else wrap(inner)
            optimizer.build([table])

        def apply(indices, values, optimizer=optimizer, table=table):
            optimizer.apply([tf.IndexedSlices(values, indices, tf.constant([5, 4]))], [table])

        if is_alone:
            apply(np.reshape(ids, -1), np.reshape(rows, (-1, 4)))
        else:

            @tf.function
            def step(apply=apply):
                def replica_step():
                    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
                    apply(tf.constant(ids)[replica], tf.constant(rows)[replica])

                strategy.run(replica_step)

            step()
        results.append(table.numpy())
    np.testing.assert_allclose(*results, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@KINDS
@pytest.mark.parametrize("ratio", [1, 10])
def test_clipping_hides_nothing_that_is_not_finite(ratio, kind, value):
    strategy = make_strategy("scalecom_ops")
    with strategy.scope():
        variable = keras.Variable(np.zeros(SHAPES[0], np.float32))
        optimizer = sc.ScaleComOptimizer(SGD(1.0, **{kind: LIMITS[kind]}), ratio)
        optimizer.build([variable])

    @tf.function
    def step():
        def replica_step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            gradient = np.ones(SHAPES[0], np.float32)
            spoilt = gradient.copy()
            spoilt[3, 4] = value
            optimizer.apply([tf.constant(np.stack([gradient, spoilt]))[replica]], [variable])

        strategy.run(replica_step)

    step()
    assert optimizer.skipped_steps.numpy() == 1
    assert not variable.numpy().any()
    assert not any(np.any(part) for parts in optimizer.residuals.values() for part in parts)


# --- Compressed --------------------------------------------------------------------------------


def compress(strategy, hierarchical=False):
    """One step by kind; returns weights and the residuals that are here."""
    results = {}
    for kind in LIMITS:
        wrap = functools.partial(
            sc.ScaleComOptimizer, compression_ratio=10, hierarchical=hierarchical
        )
        held = []

        def keeping(inner, wrap=wrap, held=held):
            held.append(wrap(inner))
            return held[0]

        weights = train(strategy, keeping, kind, steps=1)
        (residuals,) = held[0].residuals.values()
        results[kind] = weights, residuals
    return results


def check_compressed(results, own):
    """Sent plus kept is what the replicas clipped; what travels dense has limits of its own.

    Args:
        results: of all workers.
        own: [replica that exchanges][variable] its gradients.
    """
    for kind in LIMITS:
        share = len(own) ** -0.5
        kernel, bias = (sum(g) for g in zip(*(clipped(kind, o, share) for o in own), strict=True))
        if kind != "global_clipnorm":
            bias = clipped(kind, [sum(b for _, b in own)])[0]
        residual = sum(part for result in results for part in result[kind][1])
        for result in results:
            for weights in result[kind][0]:
                np.testing.assert_allclose(residual - weights[0], kernel, atol=1e-6)
                np.testing.assert_allclose(-weights[1], bias, atol=1e-6)


def test_before_compression_each_replica_clips_its_own():
    result = compress(make_strategy("scalecom_ops", replicas=4))
    check_compressed([result], [gradients_of(replica) for replica in range(4)])


# --- On workers --------------------------------------------------------------------------------

WORKERS = 2


WORKERS_WAYS = [(plain, kind) for kind in LIMITS] + [(w, "global_clipnorm") for w in WAYS[1:]]


def all_ways(strategy):
    return [train(strategy, wrap, kind) for wrap, kind in WORKERS_WAYS]


@pytest.mark.quick
def test_workers_clip_the_sum(cluster):
    first, second = cluster(WORKERS).run(all_ways, timeout=120)
    for (_, kind), mine, theirs in zip(WORKERS_WAYS, first, second, strict=True):
        assert_as_in_one_process([*mine, *theirs], in_one_process(kind, WORKERS))


@pytest.mark.quick
def test_workers_clip_their_own_before_compression(cluster):
    results = cluster(WORKERS).run(compress, timeout=90)
    check_compressed(results, [gradients_of(worker) for worker in range(WORKERS)])


def several_replicas(strategy):
    hierarchical = functools.partial(sc.ScaleComOptimizer, compression_ratio=1, hierarchical=True)
    dense = [train(strategy, wrap, "global_clipnorm") for wrap in (plain, ratio_1, hierarchical)]
    return dense, compress(strategy, hierarchical=True)


@pytest.mark.slow
def test_workers_of_several_replicas(cluster):
    results = cluster(WORKERS, logical_cpus=2).run(several_replicas, timeout=170)
    expected = in_one_process("global_clipnorm", 2 * WORKERS)
    for ways in zip(*(dense for dense, _ in results), strict=True):
        assert_as_in_one_process([w for worker in ways for w in worker], expected)
    pairs = [[gradients_of(2 * w), gradients_of(2 * w + 1)] for w in range(WORKERS)]
    own = [[sum(g) for g in zip(*pair, strict=True)] for pair in pairs]
    check_compressed([compressed for _, compressed in results], own)


def fit_without_data_at_the_end(strategy):
    """Worker 1 has one batch less than worker 0."""
    rank = strategy.extended._id_in_cluster
    x = np.random.default_rng(rank).normal(size=(16 - 8 * rank, 4)).astype(np.float32)
    weights = []
    for wrap in (plain, ratio_1, functools.partial(sc.ScaleComOptimizer, compression_ratio=10)):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(400), keras.layers.Dense(1)]
            )
            model.compile(wrap(SGD(0.1, global_clipnorm=0.6)), "mse")
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
        model.fit(strategy.distribute_datasets_from_function(lambda _, d=data: d), verbose=0)
        weights += [v.numpy() for v in model.trainable_variables]
    return weights


def test_a_worker_without_data_spoils_nothing(cluster):
    for mine, theirs in zip(
        *cluster(WORKERS).run(fit_without_data_at_the_end, timeout=150), strict=True
    ):
        assert np.isfinite(mine).all()
        np.testing.assert_array_equal(mine, theirs)
