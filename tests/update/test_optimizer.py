"""`ScaleComOptimizer` in one process: without a strategy, and on four logical CPUs."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import EXCHANGES
from local_strategies import REPLICA_ROUTES, ROUTES, make_strategy
from reference import scalecom_step

import tf_scalecom as sc
from tf_scalecom import ops
from tf_scalecom.ops import native, xla
from tf_scalecom.wire.config import CompressionConfig
from tf_scalecom.wire.layout import Layout, tensor_layout
from tf_scalecom.wire.report import compression_report
from tf_scalecom.wire.route import COLLECTIVES


@pytest.fixture(params=REPLICA_ROUTES)
def strategy(request):
    return make_strategy(request.param)


def scope(strategy):
    return strategy.scope() if strategy else contextlib.nullcontext()


def small_model(strategy, make_optimizer, **compile_arguments):
    """A model with two compressible kernels (1,280 and 4,096 elements) and small tensors."""
    keras.utils.set_random_seed(0)
    with scope(strategy):
        model = keras.Sequential(
            [
                keras.Input((20,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            make_optimizer(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            **compile_arguments,
        )
    return model


def batches(steps, global_batch=64, not_finite_at=None):
    x = np.random.default_rng(0).normal(size=(steps * global_batch, 20)).astype(np.float32)
    if not_finite_at is not None:
        x[not_finite_at * global_batch] = np.nan  # one sample: one replica
    y = np.random.default_rng(1).integers(0, 10, steps * global_batch)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch)


def train(strategy, make_optimizer, dataset, **compile_arguments):
    model = small_model(strategy, make_optimizer, **compile_arguments)
    model.fit(dataset, verbose=0, shuffle=False)
    return model


def on_each_replica(variable):
    value = getattr(variable, "value", variable)
    return [v.numpy() for v in getattr(value, "values", (value,))]


def weights(model):
    return [v.numpy() for v in model.trainable_variables]


def assert_replicas_equal(model):
    for variable in model.variables + model.optimizer.inner_optimizer.variables:
        first, *others = on_each_replica(variable)
        for other in others:
            np.testing.assert_array_equal(other, first, err_msg=variable.path)


INNER = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01, weight_decay=0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10)),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    "loss_scale": lambda: keras.optimizers.SGD(0.1, loss_scale_factor=8.0),
}


@pytest.mark.parametrize(
    ("inner", "route"),
    [
        ("nadam", "scalecom_ops"),
        ("clipnorm", "none"),
        pytest.param("nadam", "own_ops", marks=pytest.mark.slow),
        *(
            pytest.param(inner, "scalecom_ops", marks=pytest.mark.slow)
            for inner in INNER
            if inner not in ("nadam", "clipnorm")
        ),
    ],
)
def test_ratio_1_is_exactly_the_inner_optimizer(inner, route):
    # A rewritten graph would have clipping's factor pulled out of the sum, which rounds anew.
    strategy = make_strategy(route)
    stock = train(strategy, INNER[inner], batches(6))
    wrapped = train(strategy, lambda: sc.ScaleComOptimizer(INNER[inner](), 1), batches(6))
    for expected, got in zip(weights(stock), weights(wrapped), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert wrapped.optimizer.iterations.numpy() == 6


def test_n_replicas_equal_one_at_the_same_global_batch(strategy):
    one = train(None, INNER["nadam"], batches(6))
    many = train(strategy, lambda: sc.ScaleComOptimizer(INNER["nadam"](), 1), batches(6))
    for expected, got in zip(weights(one), weights(many), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("overwrite", [None, 2])
def test_accumulation_and_averages_equal_one_replica(strategy, overwrite):
    def inner():
        return keras.optimizers.SGD(
            0.1,
            momentum=0.9,
            gradient_accumulation_steps=2,
            use_ema=True,
            ema_momentum=0.8,
            ema_overwrite_frequency=overwrite,
        )

    one = train(None, inner, batches(7))
    many = train(strategy, lambda: sc.ScaleComOptimizer(inner(), 1), batches(7))
    for expected, got in zip(weights(one), weights(many), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert many.optimizer.iterations.numpy() == 3


@pytest.mark.parametrize("case", EXCHANGES, ids=lambda c: c.name)
@pytest.mark.parametrize("route", REPLICA_ROUTES)
def test_steps_on_four_replicas_agree_with_the_specification(route, case):
    """Custom loop with known gradients; SGD with learning rate 1 shows what was reduced."""
    strategy = make_strategy(route, replicas=4)
    shape, replicas, steps = (61, 50), 4, 5
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=(steps, replicas, *shape)).astype(np.float32)
    with strategy.scope():
        variable = keras.Variable(np.zeros(shape, np.float32), name="w")
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0), **case.optimizer_arguments())
        optimizer.build([variable])

    @tf.function
    def step(gradient):
        strategy.run(lambda g: optimizer.apply([g], [variable]), args=(gradient,))

    wire = tf.as_dtype(case.value_dtype).as_numpy_dtype
    tensor = case.layout(shape).tensors[0]
    residuals = np.zeros((replicas, np.prod(shape)), np.float32)
    value = np.zeros(np.prod(shape), np.float32)
    for t in range(steps):
        step(
            strategy.experimental_distribute_values_from_function(
                lambda context, t=t: tf.constant(gradients[t, context.replica_id_in_sync_group])
            )
        )
        reduced, residuals, _ = scalecom_step(
            residuals,
            gradients[t].reshape(replicas, -1),
            t % replicas,
            case.beta,
            tensor.chunk_size,
            tensor.chunk_keep,
            tensor.compression_ratio,
            wire,
            rounds_sums=wire != np.float32 and route == "scalecom_ops",
        )
        value -= reduced
        # The strategy's own all-reduce rounds to 16 bits as it sums.
        tolerance = 1e-5 if wire == np.float32 or route == "scalecom_ops" else 0.05
        np.testing.assert_allclose(variable.numpy().ravel(), value, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(
            np.stack(optimizer.residuals["w"]).reshape(replicas, -1),
            residuals,
            rtol=1e-5,
            atol=1e-6,
        )
        first, *others = on_each_replica(variable)
        for other in others:
            np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("steps_per_execution", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_step_that_is_not_finite_on_one_replica_is_skipped_on_all(steps_per_execution):
    strategy = make_strategy("scalecom_ops")

    def optimizer():
        return sc.ScaleComOptimizer(keras.optimizers.Adam(0.01), 10, beta=0.5, warmup_steps=1)

    def state(model):
        variables = model.variables + model.optimizer.inner_optimizer.variables[2:]
        return [on_each_replica(v) for v in variables] + list(model.optimizer.residuals.values())

    spoilt = train(
        strategy, optimizer, batches(5, not_finite_at=4), steps_per_execution=steps_per_execution
    )
    clean = train(strategy, optimizer, batches(4), steps_per_execution=steps_per_execution)
    assert spoilt.optimizer.skipped_steps.numpy() == 1
    assert spoilt.optimizer.iterations.numpy() == 5
    for got, expected in zip(state(spoilt), state(clean), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert_replicas_equal(spoilt)


def test_accumulated_values_that_are_not_finite_do_not_stay(strategy):
    def optimizer():
        return sc.ScaleComOptimizer(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), compression_ratio=10
        )

    model = train(strategy, optimizer, batches(6, not_finite_at=2))
    assert model.optimizer.skipped_steps.numpy() == 1
    assert all(np.isfinite(w).all() for w in weights(model))
    assert all(np.isfinite(parts).all() for parts in model.optimizer.residuals.values())


def test_warmup_travels_dense_then_compressed(strategy):
    def optimizer(steps):
        return lambda: sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), 10, warmup_steps=steps)

    stock = train(strategy, lambda: keras.optimizers.SGD(0.1), batches(4))
    warm = train(strategy, optimizer(4), batches(4))
    for expected, got in zip(weights(stock), weights(warm), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert not any(np.any(parts) for parts in warm.optimizer.residuals.values())
    past = train(strategy, optimizer(3), batches(4))
    assert all(np.any(parts) for parts in past.optimizer.residuals.values())


def test_a_ramp_sends_less_and_less(strategy):
    with strategy.scope():
        variable = keras.Variable(np.zeros((50, 80), np.float32))
        small = keras.Variable(np.zeros(9, np.float32))
        optimizer = sc.ScaleComOptimizer(
            keras.optimizers.SGD(1.0), 128, warmup_steps=10, warmup="ramp"
        )
        optimizer.build([variable, small])
    gradient = tf.random.stateless_normal((50, 80), (1, 2))
    step = tf.function(
        lambda: strategy.run(lambda: optimizer.apply([gradient, tf.ones(9)], [variable, small]))
    )
    kept = [k for k in (1_000, 500, 250, 125, 63) for _ in range(2)] + [32, 32]  # of 4,000
    before = variable.numpy()
    for i, expected in enumerate(kept):
        step()
        assert np.count_nonzero(variable.numpy() - before) == expected
        assert optimizer.compression_report(step=i).rows[0].kept == expected
        before = variable.numpy()
    np.testing.assert_array_equal(small.numpy(), [-24.0] * 9)
    held = sum(next(iter(optimizer.residuals.values())))
    np.testing.assert_allclose(held - before, 24 * gradient, rtol=1e-4)
    assert optimizer.compression_report().rows[0].kept == 32


@pytest.mark.parametrize(
    ("ratio", "steps", "ends"),
    [(128, 10, [2, 4, 6, 8, 10]), (128, 2, [1, 2]), (6, 10, [4, 8]), (4.2, 10, []), (2, 10, [])],
)
def test_stages_of_a_ramp_send_different_things(ratio, steps, ends):
    optimizer = sc.ScaleComOptimizer(
        keras.optimizers.SGD(1.0), ratio, warmup_steps=steps, warmup="ramp"
    )
    optimizer.build([keras.Variable(np.zeros((50, 80), np.float32))])
    assert optimizer.warmup_ends == ends
    for step in (-1, 1.5, True, "2"):
        with pytest.raises(ValueError, match=f"step as an integer >= 0; received {step!r}"):
            optimizer.compression_report(step=step)


def test_eager_steps_equal_traced_ones():
    strategy = make_strategy("scalecom_ops")

    def optimizer():
        return sc.ScaleComOptimizer(
            keras.optimizers.SGD(0.1), 10, beta=0.5, warmup_steps=2, warmup="ramp"
        )

    eager = train(strategy, optimizer, batches(3), run_eagerly=True)
    traced = train(strategy, optimizer, batches(3))
    for expected, got in zip(weights(traced), weights(eager), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_residuals_belong_to_each_replica_and_variable(strategy):
    model = train(strategy, lambda: sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), 10), batches(3))
    residuals = model.optimizer.residuals
    assert list(residuals) == [v.path for v in model.trainable_variables if np.prod(v.shape) > 1000]
    for variable in model.trainable_variables:
        for part in residuals.get(variable.path, ()):
            assert part.shape == tuple(variable.shape)
            assert part.dtype == np.float32
    kernels = next(iter(residuals.values()))
    assert len(kernels) == 2
    assert not np.array_equal(kernels[0], kernels[1])


def test_one_replica_passes_gradients_through():
    model = train(None, lambda: sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), 100), batches(5))
    stock = train(None, lambda: keras.optimizers.SGD(0.1), batches(5))
    for expected, got in zip(weights(stock), weights(model), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert model.optimizer.compression_report().ratio == 1
    assert model.optimizer.compression_report(num_replicas=8).ratio > 4


def custom_step(strategy, optimizer, variables, make_gradients):
    """One step of a custom loop; `make_gradients` runs on each replica."""

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply(make_gradients(), variables))

    step()


def test_autograph_rewrites_nothing_of_a_step(strategy):
    """It would make the trace of a function of the user's take twice as long."""
    statuses = set()

    class Noting(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            statuses.add(tf.__internal__.autograph.control_status_ctx().status.name)
            super().update_step(gradient, variable, learning_rate)

    with strategy.scope():
        variable = keras.Variable(np.ones((40, 50), np.float32), name="v")
        optimizer = sc.ScaleComOptimizer(Noting(1.0), 10)
    custom_step(strategy, optimizer, [variable], lambda: [tf.ones((40, 50))])
    assert statuses == {"DISABLED"}


def test_variables_without_a_gradient_are_left_alone(strategy):
    with strategy.scope():
        variables = [keras.Variable(np.ones((40, 50), np.float32), name=n) for n in "ab"]
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0), 10)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        custom_step(strategy, optimizer, variables, lambda: [None, tf.ones((40, 50))])
    np.testing.assert_array_equal(variables[0].numpy(), np.ones((40, 50)))
    assert (variables[1].numpy() != 1).sum() == 200


@pytest.mark.parametrize("exclude", [(), "embedding"])
def test_indexed_slices_are_summed_and_travel(strategy, exclude):
    with strategy.scope():
        table = keras.Variable(np.zeros((200, 8), np.float32), name="embedding")
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0), 8, exclude=exclude)
    rows = [3, 5, 3]

    def gradient():
        return [tf.IndexedSlices(tf.ones((3, 8)), tf.constant(rows), tf.constant([200, 8]))]

    custom_step(strategy, optimizer, [table], gradient)
    value = table.numpy()
    if exclude:
        np.testing.assert_array_equal(np.unique(np.nonzero(value)[0]), [3, 5])
        np.testing.assert_array_equal(value[3], np.full(8, -4.0))  # twice on each of 2 replicas
        assert not optimizer.residuals
    else:
        sent = value != 0
        assert sent.sum() == 2  # one per chunk of 8 elements with a gradient
        gradient_sum = np.zeros((200, 8))
        gradient_sum[3], gradient_sum[5] = 4, 2
        np.testing.assert_array_equal(sum(optimizer.residuals["embedding"]) - value, gradient_sum)


@pytest.mark.parametrize("scaling", ["factor", "optimizer"])
def test_excluded_indexed_slices_under_a_loss_scale(strategy, scaling):
    with strategy.scope():
        table = keras.Variable(np.zeros((200, 8), np.float32), name="embedding")
        factor = 8.0 if scaling == "factor" else None
        inner = keras.optimizers.SGD(1.0, loss_scale_factor=factor)
        optimizer = sc.ScaleComOptimizer(inner, 8, exclude="embedding")
        if scaling == "optimizer":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)

    def gradient():
        return [tf.IndexedSlices(8 * tf.ones((1, 8)), tf.constant([3]), tf.constant([200, 8]))]

    custom_step(strategy, optimizer, [table], gradient)
    np.testing.assert_array_equal(table.numpy()[3], np.full(8, -2.0))
    assert not np.delete(table.numpy(), 3, axis=0).any()


@pytest.mark.parametrize("route", ROUTES)
def test_iterations_advance_where_gradients_overwrite_all_variables(route):
    strategy = make_strategy(route) or tf.distribute.get_strategy()
    with strategy.scope():
        variable = keras.Variable(np.zeros(3, np.float32))
        variable.overwrite_with_gradient = True
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0))
    for _ in range(2):
        custom_step(strategy, optimizer, [variable], lambda: [tf.ones(3)])
    assert optimizer.iterations.numpy() == 2
    np.testing.assert_array_equal(variable.numpy(), np.ones(3))


@pytest.mark.parametrize("ratio", [1e10, 1e300])
def test_huge_ratios_keep_one_element_of_each_variable(strategy, ratio):
    with strategy.scope():
        variable = keras.Variable(np.zeros(2_000, np.float32))
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0), ratio, chunk_keep=3)
    custom_step(strategy, optimizer, [variable], lambda: [tf.ones(2_000)])
    np.testing.assert_array_equal(np.flatnonzero(variable.numpy()), [0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_variables_of_other_dtypes(strategy, dtype):
    with strategy.scope():
        variables = [
            keras.Variable(np.zeros(shape), dtype=dtype, name=f"v{i}")
            for i, shape in enumerate([(400, 200), (10,)])  # over 65,536 elements, and small
        ]
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0), 100)
    custom_step(
        strategy, optimizer, variables, lambda: [tf.ones(v.shape, dtype) for v in variables]
    )
    assert (tf.cast(variables[0].value, "float32").numpy() == -2).sum() == 800
    assert (tf.cast(variables[1].value, "float32").numpy() == -2).all()
    (residual,) = optimizer.residuals.values()
    assert residual[0].dtype == np.float32


def test_constraints_and_weight_decay_act_once(strategy):
    def variables():
        return [keras.Variable(np.full((40, 50), 2.0, np.float32), name="w")]

    def inner():
        return keras.optimizers.SGD(0.5, weight_decay=0.1)

    with strategy.scope():
        wrapped_variables = variables()
        wrapped_variables[0].constraint = keras.constraints.NonNeg()
        wrapped = sc.ScaleComOptimizer(inner(), 1)
    custom_step(strategy, wrapped, wrapped_variables, lambda: [tf.ones((40, 50)) / 2])
    np.testing.assert_allclose(wrapped_variables[0].numpy(), 2 - 2 * 0.1 * 0.5 - 0.5, rtol=1e-6)
    custom_step(strategy, wrapped, wrapped_variables, lambda: [tf.fill((40, 50), 100.0)])
    np.testing.assert_array_equal(wrapped_variables[0].numpy(), np.zeros((40, 50)))


def test_paths_that_repeat_are_kept_apart():
    variables = [keras.Variable(np.zeros((40, 50), np.float32), name="same") for _ in range(2)]
    optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(variables)
    assert list(optimizer.residuals) == ["same", "same#2"]


def test_learning_rate_and_averages_are_the_inner_optimizers():
    inner = keras.optimizers.Adam(0.1, use_ema=True)
    optimizer = sc.ScaleComOptimizer(inner)
    optimizer.learning_rate = 0.25
    assert float(inner.learning_rate) == 0.25
    assert optimizer.use_ema
    assert optimizer.iterations is inner.iterations
    optimizer.loss_scale_factor = 4.0
    assert inner.loss_scale_factor == 4.0
    assert float(optimizer.scale_loss(tf.constant(2.0))) == 8.0


def test_configuration_survives_a_round_trip(tmp_path):
    arguments = dict(
        compression_ratio={"kernel": 20},
        beta=0.5,
        warmup_steps=3,
        exclude=["dense_9"],
        selection="exact",
        chunk_keep=2,
        value_dtype="bfloat16",
        name="mine",
        warmup="ramp",
    )
    optimizer = sc.ScaleComOptimizer(keras.optimizers.Adam(0.125), **arguments)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, sc.ScaleComOptimizer)
    assert again.get_config() == optimizer.get_config()
    assert isinstance(again.inner_optimizer, keras.optimizers.Adam)


def test_a_saved_model_comes_back_with_its_state(tmp_path):
    strategy = make_strategy("scalecom_ops")
    model = train(
        strategy,
        lambda: sc.ScaleComOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), 10, beta=0.5),
        batches(3),
    )
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)
    assert isinstance(again.optimizer, sc.ScaleComOptimizer)
    assert again.optimizer.iterations.numpy() == 3
    for expected, got in zip(
        model.optimizer.residuals.values(), again.optimizer.residuals.values(), strict=True
    ):
        np.testing.assert_array_equal(got[0], expected[0])


SGD = keras.optimizers.SGD
BAD_ARGUMENTS = {
    "ratio_below_1": (dict(compression_ratio=0.5), "compression_ratio.*number >= 1.*0.5"),
    "ratio_beyond_floats": (dict(compression_ratio=10**400), "compression_ratio.*number >= 1"),
    "ratio_true": (dict(compression_ratio=True), "compression_ratio.*number >= 1.*True"),
    "ratio_nan": (dict(compression_ratio=float("nan")), "compression_ratio"),
    "ratio_tensor": (dict(compression_ratio=tf.constant(5.0)), "compression_ratio.*number >= 1"),
    "ratio_word": (dict(compression_ratio="high"), "compression_ratio.*'high'"),
    "ratio_empty": (dict(compression_ratio={}), "compression_ratio"),
    "ratio_in_dict": (dict(compression_ratio={"kernel": 0}), r"compression_ratio\['kernel'\]"),
    "beta_0": (dict(beta=0), r"beta.*\(0, 1\].*0"),
    "beta_0_in_float32": (dict(beta=1e-50), r"beta.*\(0, 1\].*1e-50"),
    "beta_true": (dict(beta=True), r"beta.*\(0, 1\].*True"),
    "hierarchical": (dict(hierarchical=1), "hierarchical.*True or False.*1"),
    "warmup_true": (dict(warmup_steps=True), "warmup_steps.*integer >= 0.*True"),
    "chunk_keep_true": (dict(chunk_keep=True), "chunk_keep.*integer >= 1.*True"),
    "beta_2": (dict(beta=2), r"beta.*\(0, 1\].*2"),
    "warmup": (dict(warmup_steps=-1), "warmup_steps.*integer >= 0.*-1"),
    "warmup_float": (dict(warmup_steps=1.5), "warmup_steps.*integer"),
    "warmup_kind": (dict(warmup="none"), "warmup.*'dense', 'ramp'.*'none'"),
    "selection": (dict(selection="random"), "selection.*'chunk', 'exact'.*'random'"),
    "chunk_keep": (dict(chunk_keep=0), "chunk_keep.*integer >= 1.*0"),
    "value_dtype": (dict(value_dtype="int4"), "value_dtype.*'float32'.*'int4'"),
    "regex": (dict(exclude="("), "exclude.*regular expressions"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_are_named(name):
    arguments, message = BAD_ARGUMENTS[name]
    with pytest.raises(ValueError, match=message):
        sc.ScaleComOptimizer(SGD(0.1), **arguments)


def test_numbers_of_numpy_are_numbers():
    optimizer = sc.ScaleComOptimizer(
        SGD(0.1), compression_ratio=np.float32(25), beta=np.float64(0.5), chunk_keep=np.int64(2)
    )
    config = optimizer.get_config()
    assert (config["compression_ratio"], config["beta"], config["chunk_keep"]) == (25, 0.5, 2)
    assert type(config["compression_ratio"]) is float and type(config["chunk_keep"]) is int


@pytest.mark.parametrize(
    ("optimizer", "advice"),
    [
        ("no_such", "no_such"),
        (None, "Pass an instance"),
        (SGD, "Pass an instance"),
        (lambda: keras.optimizers.LossScaleOptimizer(SGD()), "other way round"),
        (lambda: sc.ScaleComOptimizer(SGD()), "Wrap once"),
    ],
)
def test_only_plain_optimizers_can_be_wrapped(optimizer, advice):
    if callable(optimizer) and optimizer is not SGD:
        optimizer = optimizer()
    with pytest.raises(ValueError, match=advice):
        sc.ScaleComOptimizer(optimizer)


@pytest.mark.parametrize(
    "arguments", [dict(exclude="no_such"), dict(compression_ratio={"no_such": 5})]
)
def test_patterns_that_match_nothing_are_refused(arguments):
    optimizer = sc.ScaleComOptimizer(SGD(0.1), **arguments)
    with pytest.raises(ValueError, match=r"no_such.*the paths are"):
        optimizer.build([keras.Variable(np.zeros(3), name="w")])


def test_an_optimizer_that_cannot_take_zeros_is_refused_where_something_is_compressed():
    variables = [keras.Variable(np.zeros((40, 50), np.float32), name="w")]
    with pytest.raises(ValueError, match=r"epsilon_1 >= 1e-16; received 1e-30.*divides 0 by 0"):
        sc.ScaleComOptimizer(keras.optimizers.Adafactor()).build(variables)
    sc.ScaleComOptimizer(keras.optimizers.Adafactor(), compression_ratio=1).build(variables)


def test_a_report_outside_a_strategy_counts_workers():
    variables = [keras.Variable(np.zeros((400, 500), np.float32)) for _ in range(3)]
    optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), 100)
    optimizer.build(variables)
    report = optimizer.compression_report(num_replicas=8)
    layout = CompressionConfig(compression_ratio=100).layout(variables)
    expected = compression_report(layout, 8, COLLECTIVES)
    assert report.bytes_sent == expected.bytes_sent
    for wrong in (True, 0, 2.0):
        with pytest.raises(ValueError, match="num_replicas as an integer >= 1"):
            optimizer.compression_report(num_replicas=wrong)


def test_an_exact_selection_that_no_kernels_know_is_refused():
    layout = Layout((tensor_layout("w", (2**32,), "float32", 100, "exact"),))
    assert native.unsupported(layout) and xla.unsupported(layout)
    with pytest.raises(ValueError, match=r"exact selection.*received w of 4294967296.*chunk"):
        ops.kernels_for(layout)
    assert not native.unsupported(Layout((tensor_layout("w", (2**33,), "float32", 1e12),)))


def test_unsupported_surroundings_are_refused_by_name():
    strategy = tf.distribute.experimental.CentralStorageStrategy()
    with strategy.scope():
        variable = keras.Variable(np.zeros(3, np.float32), name="w")
        optimizer = sc.ScaleComOptimizer(SGD(0.1))
    with pytest.raises(ValueError, match="CentralStorageStrategy"):
        strategy.run(lambda: optimizer.apply([tf.ones(3)], [variable]))


def test_state_is_not_there_before_build():
    optimizer = sc.ScaleComOptimizer(SGD(0.1))
    for wanted in (lambda: optimizer.residuals, optimizer.compression_report):
        with pytest.raises(ValueError, match="expected to be built"):
            wanted()
