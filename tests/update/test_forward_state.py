"""A skipped step leaves nothing behind in what the forward pass assigns."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_scalecom as sc

BAD = 2  # the batch with a NaN, of BATCHES
BATCHES = 5
EXACT = ["own_mean", "norm"]  # the rest keeps what is finite


class Tracks(keras.layers.Layer):
    """Keeps the mean of its last inputs, assigned in the way named; aggregated or not."""

    def __init__(self, way="plain", aggregation="none", **kwargs):
        super().__init__(**kwargs)
        self.way, self.aggregation = way, aggregation

    def build(self, shape):
        self.mean = self.add_weight(
            shape=shape[1:], trainable=False, aggregation=self.aggregation, name="mean"
        )
        self.update = tf.function(self.assign, autograph=False)

    def assign(self, inputs):
        self.mean.assign(tf.reduce_mean(tf.cast(inputs, "float32"), axis=0))

    def call(self, inputs, training=False):
        if training and self.way == "plain":
            self.mean.assign(self.mean * 0.5)  # the second assignment of the step is the next one
            self.assign(inputs)
        elif training and self.way == "cond":
            tf.cond(tf.shape(inputs)[0] > 0, lambda: self.assign(inputs), lambda: None)
        elif training:
            self.update(inputs)
        return inputs


def train(
    strategy,
    place=0,
    num_workers=1,
    replicas_here=1,
    optimizer=None,
    synchronized=False,
    policy="float32",
    hierarchical=False,
    **compile_arguments,
):
    """Trains with a NaN on the last worker; returns what layers hold after each execution."""
    keras.config.set_dtype_policy(policy)
    rng = np.random.default_rng(place)
    x = rng.normal(size=(4 * BATCHES * replicas_here, 6)).astype("float32")
    if place == num_workers - 1:
        x[4 * BAD * replicas_here, 1] = np.nan
    with strategy.scope():
        layers = [
            keras.layers.BatchNormalization(synchronized=synchronized, name="norm"),
            Tracks(name="own_mean"),
            Tracks("cond", name="in_cond"),
            Tracks("function", name="in_function"),
        ]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(2)])
        if optimizer is None:
            optimizer = sc.ScaleComOptimizer(
                keras.optimizers.SGD(0.01), compression_ratio=2, hierarchical=hierarchical
            )
        model.compile(optimizer, "mse", jit_compile=False, **compile_arguments)
    seen = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append({layer.name: state(strategy, layer) for layer in layers})

    y = np.ones((len(x), 2), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    if num_workers > 1:
        own = data
        data = strategy.distribute_datasets_from_function(lambda _: own)
    model.fit(data, verbose=0, callbacks=[Record()])
    return seen, np.isfinite(model.get_weights()[-1]).all()


def state(strategy, layer):
    """The values on all replicas of this process."""
    return np.stack(
        [
            part.numpy()
            for v in layer.non_trainable_variables
            if v.dtype == "float32"
            for part in strategy.experimental_local_results(v.value)
        ]
    )


def check(outcome, steps=1):
    seen, learned = outcome
    assert learned
    assert len(seen) == -(-BATCHES // steps)
    for states in seen:
        for name, values in states.items():
            assert np.isfinite(values).all(), name
    if steps == 1:
        for name in EXACT:
            np.testing.assert_array_equal(seen[BAD][name], seen[BAD - 1][name])
            assert (seen[BAD + 1][name] != seen[BAD][name]).all(), "goes on from there"


def train_on_worker(strategy, **arguments):
    extended = strategy.extended
    place = extended._id_in_cluster, extended._num_workers, len(extended.worker_devices)
    return train(strategy, *place, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"synchronized": True, "steps_per_execution": 2},
        {"run_eagerly": True, "synchronized": True},
        {"policy": "mixed_float16"},
        {"policy": "mixed_float16", "optimizer": "sgd", "synchronized": True},
    ],
    ids=["own", "synchronized", "eager", "scaled", "scaled-stock"],
)
def test_on_two_workers(cluster, arguments):
    for outcome in cluster(2).run(train_on_worker, **arguments, timeout=120):
        check(outcome, arguments.get("steps_per_execution", 1))


@pytest.mark.parametrize("synchronized", [False, True])
def test_on_three_workers(cluster, synchronized):
    for outcome in cluster(3).run(train_on_worker, synchronized=synchronized, timeout=120):
        check(outcome)


def test_on_two_workers_of_two_replicas(cluster):
    for outcome in cluster(2, logical_cpus=2).run(train_on_worker, hierarchical=True, timeout=120):
        check(outcome)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"steps_per_execution": 2},
        {"run_eagerly": True},
        {"policy": "mixed_float16"},
    ],
    ids=["graph", "several-steps", "eager", "scaled"],
)
def test_alone(arguments):
    try:
        outcome = train(tf.distribute.get_strategy(), **arguments)
    finally:
        keras.config.set_dtype_policy("float32")
    if "run_eagerly" in arguments:
        # A function that is no part of a graph around it cannot be seen into.
        for states in outcome[0]:
            del states["in_function"]
    check(outcome, arguments.get("steps_per_execution", 1))


def test_accumulation_keeps_what_is_finite():
    inner = keras.optimizers.SGD(0.01, gradient_accumulation_steps=4)
    seen, _ = train(tf.distribute.get_strategy(), optimizer=sc.ScaleComOptimizer(inner))
    assert all(np.isfinite(v).all() for states in seen for v in states.values())
    assert (seen[BAD]["norm"] != seen[BAD - 1]["norm"]).any()


def on_two_devices(aggregation="none"):
    """Steps of a loop of the user's own on two replicas of one process, a NaN on one of them."""
    devices = ["CPU:0", "CPU:1"]
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=sc.ScaleComAllReduce.for_devices(devices)
    )
    with strategy.scope():
        layers = [keras.layers.BatchNormalization(), Tracks("plain", aggregation)]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(2)])
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.01), compression_ratio=2)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x):
        def replica_step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables))

        strategy.run(replica_step, args=(x,))

    seen = []
    for number in range(3):
        rows = tf.random.normal([2, 4, 6])
        if number == 1:
            rows += tf.constant([0.0, np.nan])[:, None, None]
        x = strategy.experimental_distribute_values_from_function(
            lambda place, rows=rows: rows[place.replica_id_in_sync_group]
        )
        step(x)
        seen.append([state(strategy, layer) for layer in layers])
    return seen


@pytest.mark.parametrize("aggregation", ["none", "mean"])
def test_on_two_devices(aggregation):
    before, after, later = on_two_devices(aggregation)
    assert [len(values) for values in before] == [4, 2]
    for a, b, c in zip(before, after, later, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(c).all() and (c != b).any()


def test_what_is_assigned_between_steps_stays():
    """From a callback or a file: the next step, if it is skipped, does not take it back."""
    layer = Tracks()
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile(sc.ScaleComOptimizer(keras.optimizers.SGD(0.1)), "mse", run_eagerly=True)
    model(np.ones((2, 3)), training=True)  # a forward pass without an update
    layer.mean.assign([5.0, 6.0, 7.0])
    model.train_on_batch(np.full((2, 3), np.nan, np.float32), np.ones((2, 1)))
    assert model.optimizer.skipped_steps.numpy() == 1
    assert layer.mean.numpy().tolist() == [5.0, 6.0, 7.0]


def test_metrics_still_show_the_nan():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(sc.ScaleComOptimizer(keras.optimizers.SGD(0.1)), "mse")
    logs = model.train_on_batch(
        np.full((2, 3), np.nan, np.float32), np.ones((2, 1)), return_dict=True
    )
    assert np.isnan(logs["loss"])


def test_two_optimizers_on_one_forward_pass():
    """As in a GAN: the second skips what the first, which saw no NaN, did not."""
    layer = Tracks()
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    optimizers = [sc.ScaleComOptimizer(keras.optimizers.SGD(0.1)) for _ in range(2)]
    for optimizer in optimizers:
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, factor):
        output = model(x, training=True)
        for optimizer, scale in zip(optimizers, (1.0, factor), strict=True):
            optimizer.apply([v * scale for v in model.trainable_variables])
        return output

    step(tf.ones([2, 3]), 1.0)
    step(tf.constant([[1.0, 2.0, np.nan]] * 2), np.nan)
    assert [int(o.skipped_steps.numpy()) for o in optimizers] == [0, 1]
    assert layer.mean.numpy().tolist() == [1.0, 2.0, 1.0]
