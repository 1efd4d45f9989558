"""Compressed training on real worker processes: what must always be true, and what goes wrong."""

import dataclasses
import gc
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from digits import dense_model, digest, digits
from known_gradients import CASES, SHAPE, apply_known_gradients, known_gradients
from private_network import loopback_bytes, private_network_pool
from reference import scalecom_step
from worker_cluster import WorkerCluster

import tf_scalecom as sc

TWO_OR_THREE = [pytest.param(2, marks=pytest.mark.quick), 3]


@pytest.mark.parametrize("workers", TWO_OR_THREE)
@pytest.mark.parametrize(
    ("name", "ramp"),
    [("top1", 0), ("top10_filtered", 0), ("exact", 0), ("bfloat16_wire", 0), ("top10_filtered", 4)],
)
def test_workers_agree_with_the_specification(cluster, workers, name, ramp):
    case, steps = CASES[name], 5
    histories = cluster(workers).run(
        apply_known_gradients, case, steps, warmup="ramp", warmup_steps=ramp, timeout=120
    )
    gradients = known_gradients(steps, workers).reshape(steps, workers, -1)
    residuals = np.zeros(gradients.shape[1:], np.float32)
    value = np.zeros(gradients.shape[2], np.float32)
    for t in range(steps):
        ratio = case.compression_ratio
        if t < ramp:  # five stages from 4 on
            ratio = 4 * (ratio / 4) ** (t * 5 // ramp / 5)
        tensor = dataclasses.replace(case, compression_ratio=ratio).layout(SHAPE).tensors[0]
        reduced, residuals, _ = scalecom_step(
            residuals,
            gradients[t],
            t % workers,
            case.beta,
            tensor.chunk_size,
            tensor.chunk_keep,
            tensor.compression_ratio,
            tf.as_dtype(case.value_dtype).as_numpy_dtype,
            rounds_sums=case.value_dtype != "float32",
        )
        value -= reduced
        for worker, history in enumerate(histories):
            weights, (residual,) = history[t]
            np.testing.assert_allclose(weights.ravel(), value, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(residual.ravel(), residuals[worker], rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(weights, histories[0][t][0])


@pytest.mark.parametrize(("workers", "name"), [(2, "int8_wire"), (3, "top1")])
def test_conservation_is_exact_for_integer_gradients(cluster, workers, name):
    steps = 6
    histories = cluster(workers).run(
        apply_known_gradients, CASES[name], steps, integers=True, timeout=120
    )
    gradients = known_gradients(steps, workers, integers=True)
    for t in range(steps):
        sent = -histories[0][t][0]
        held = sum(history[t][1][0] for history in histories)
        np.testing.assert_array_equal(sent + held, gradients[: t + 1].sum(axis=(0, 1)))


def own_batches(strategy, x, y, batch):
    """A dataset of this worker's own."""
    return strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)
    )


def fit_shards(strategy, ratio, global_batch=48, samples=480):
    """Trains on this worker's rows of each global batch; returns weights and a digest."""
    workers = strategy.num_replicas_in_sync
    rank = strategy.cluster_resolver.task_id if workers > 1 else 0
    x, y = digits(samples)
    rows = np.arange(samples).reshape(-1, workers, global_batch // workers)[:, rank].ravel()

    def optimizer():
        inner = keras.optimizers.SGD(0.1, momentum=0.9)
        return sc.ScaleComOptimizer(inner, ratio) if ratio else inner

    model = dense_model(strategy, optimizer)
    model.fit(own_batches(strategy, x[rows], y[rows], global_batch // workers), epochs=2, verbose=0)
    variables = model.trainable_variables
    return [v.numpy() for v in variables], digest(variables)


def test_ratio_1_is_plain_all_reduce_and_n_workers_are_one(cluster):
    stock = cluster(3).run(fit_shards, None, timeout=120)
    wrapped = cluster(3).run(fit_shards, 1, timeout=120)
    assert {d for _, d in stock} == {d for _, d in wrapped}
    ((alone, _),) = cluster(1).run(fit_shards, None, timeout=120)
    for expected, got in zip(alone, wrapped[0][0], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_compressed_weights_stay_bit_equal(cluster):
    results = cluster(3).run(fit_shards, 20, timeout=120)
    assert len({d for _, d in results}) == 1


def by_name(method, arguments):
    return getattr(sc.methods, method)(**arguments)


def fit_with_nan(strategy, policy, steps_per_execution, method):
    """One NaN, in the last batch of worker 1 alone; returns the state and that one step earlier."""
    keras.config.set_dtype_policy(policy)
    rank = strategy.cluster_resolver.task_id

    def train(steps):
        x, y = digits(16 * 5, seed=rank)
        if rank == 1:
            x[-1] = np.nan
        x, y = x[: 16 * steps], y[: 16 * steps]
        model = dense_model(
            strategy,
            lambda: sc.CompressedOptimizer(keras.optimizers.Adam(0.01), by_name(*method)),
            steps_per_execution=steps_per_execution,
        )
        model.fit(own_batches(strategy, x, y, 16), verbose=0)
        # Under mixed_float16 Keras itself puts a LossScaleOptimizer around.
        scale = getattr(model.optimizer, "dynamic_scale", None)
        optimizer = model.optimizer if scale is None else model.optimizer.inner_optimizer
        slots = optimizer.inner_optimizer.variables[2:]  # after iterations and learning rate
        residuals = [parts[0] for parts in optimizer.residuals.values()]
        return {
            "shared": digest(model.trainable_variables + slots),
            "residuals": [r.tobytes() for r in residuals],
            "skipped": int(optimizer.skipped_steps.numpy()),
            "iterations": int(optimizer.iterations.numpy()),
            "scale": None if scale is None else float(scale.numpy()),
        }

    return train(5), train(4)


NARROW = {"compression_ratio": 10, "value_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("policy", "steps_per_execution", "method"),
    [
        ("float32", 4, ("CltK", {"compression_ratio": 10, "beta": 0.5})),
        ("mixed_float16", 1, ("CltK", {"compression_ratio": 10, "beta": 0.5})),
        ("float32", 1, ("OwnersTopK", NARROW)),
        ("float32", 1, ("PowerSGD", {"rank": 2})),
    ],
)
def test_nan_on_one_worker_skips_the_step_everywhere(cluster, policy, steps_per_execution, method):
    results = cluster(2).run(fit_with_nan, policy, steps_per_execution, method, timeout=180)
    for spoilt, clean in results:
        assert spoilt["shared"] == clean["shared"]
        assert spoilt["residuals"] == clean["residuals"]
        if policy == "float32":
            assert (spoilt["skipped"], spoilt["iterations"]) == (1, 5)
        else:  # Keras's loss scaling skips before the wrapped optimizer sees the step
            assert spoilt["scale"] == clean["scale"] / 2
    assert results[0][0]["shared"] == results[1][0]["shared"]


def fit_normalised(strategy):
    """Worker 1 has no data for most of the epoch, and batch normalisation no mean without data."""
    rank = strategy.cluster_resolver.task_id
    x, y = digits(16 * (2 if rank else 7), seed=rank)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((20,)),
                keras.layers.Dense(64),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            sc.ScaleComOptimizer(
                keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), compression_ratio=10
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    model.fit(own_batches(strategy, x, y, 16), epochs=2, verbose=0)
    skipped = model.optimizer.skipped_steps.numpy()
    return digest(model.trainable_variables), all_finite(model.variables), int(skipped)


def all_finite(variables):
    return all(np.isfinite(v.numpy()).all() for v in variables)


@pytest.mark.quick
def test_a_worker_without_data_spoils_no_step(cluster):
    (first, *_), _ = results = cluster(2).run(fit_normalised, timeout=120)
    assert results == [(first, True, 0)] * 2


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


WARM_UP_EPOCHS = 20


def many_uneven_epochs(strategy, epochs):
    """Short epochs over finite data, one batch more on each further worker, the last partial."""
    rank = strategy.cluster_resolver.task_id
    x, y = digits(16 * (8 + rank) + 5, seed=rank)

    def optimizer():
        return sc.ScaleComOptimizer(keras.optimizers.SGD(0.01, momentum=0.9), 20, beta=0.5)

    gc.collect()  # what others have left here: the warm-up finds the memory as the rest will
    model = dense_model(strategy, optimizer, steps_per_execution=4)
    data = own_batches(strategy, x, y, 16)
    model.fit(data, epochs=WARM_UP_EPOCHS, verbose=0)  # allocator, caches, traces
    gc.collect()
    before = resident_bytes()
    model.fit(data, epochs=epochs, verbose=0)
    gc.collect()
    return (
        digest(model.trainable_variables),
        resident_bytes() - before,
        int(model.optimizer.iterations.numpy()),
    )


@pytest.mark.slow
def test_many_uneven_epochs_end_together_in_constant_memory(cluster):
    epochs = 30
    results = cluster(2).run(many_uneven_epochs, epochs, timeout=400)
    digests, growth, steps = zip(*results, strict=True)
    assert len(set(digests)) == 1
    # An epoch is as long as the longest worker's data: nine whole batches and a partial one.
    assert steps == ((WARM_UP_EPOCHS + epochs) * 10,) * 2
    assert max(growth) < 2.5e6  # over 300 steps


def spread_of_rows(y_true, y_pred):
    """One number for the batch, which each replica computes of the rows of all."""
    return keras.ops.std(y_pred - y_true)


NEW_OPTIMIZERS = {
    "compressed": lambda: sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), 4),
    "plain": lambda: keras.optimizers.SGD(0.1),
    "plain, clipped": lambda: keras.optimizers.SGD(0.1, clipnorm=1.0),
}


def fit_one_more(strategy, optimizer):
    keras.backend.clear_session(free_memory=False)
    with strategy.scope():
        words = keras.Input((4,))
        outputs = {
            "number": keras.layers.Dense(3)(words),
            "masked": keras.layers.Dense(3)(keras.layers.Embedding(5, 2, mask_zero=True)(words)),
        }
        model = keras.Model(words, outputs)
        losses = {"number": spread_of_rows, "masked": "mse"}
        model.compile(NEW_OPTIMIZERS[optimizer](), losses, metrics={"number": "mae"})
    targets = {"number": np.ones((8, 3)), "masked": np.ones((8, 4, 3))}
    model.fit(np.ones((8, 4)), targets, batch_size=4, verbose=0)


def graphs():
    gc.collect()
    return {id(x) for x in gc.get_objects() if type(x).__name__ == "FuncGraph"}


def graphs_left(strategy):
    before = graphs()
    left = {}
    for name in NEW_OPTIMIZERS:
        fit_one_more(strategy, name)
        left[name] = len(graphs() - before)
    return left


def test_a_model_that_is_gone_leaves_no_graph(cluster):
    assert cluster(2).run(graphs_left) == [dict.fromkeys(NEW_OPTIMIZERS, 0)] * 2


def measure_traffic(strategy, widths, method, steps):
    """Loopback bytes over `steps` steps without data or metrics, and the report's claim."""
    rng = np.random.default_rng(strategy.cluster_resolver.task_id)
    shapes = [shape for pair in itertools.pairwise(widths) for shape in (pair, pair[1:])]
    with strategy.scope():
        variables = [
            keras.Variable(np.zeros(shape, np.float32), name=f"v{i}")
            for i, shape in enumerate(shapes)
        ]
        optimizer = sc.CompressedOptimizer(keras.optimizers.SGD(0.01), by_name(*method))
        optimizer.build(variables)
    gradients = [tf.constant(rng.normal(size=v.shape), tf.float32) for v in variables]

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply(gradients, variables))

    for _ in range(2):
        step()
    strategy.reduce("SUM", tf.constant(1.0), axis=None)  # nobody is still in a step
    before = loopback_bytes()
    for _ in range(steps):
        step()
    strategy.reduce("SUM", tf.constant(1.0), axis=None)
    report = optimizer.compression_report()
    return loopback_bytes() - before, report.bytes_sent, report.bytes_dense


HUNDRED = ("CltK", {"compression_ratio": 100})
DENSE = ("CltK", {"compression_ratio": 1})
OWNERS = ("OwnersTopK", {"compression_ratio": 92, "value_dtype": "bfloat16"})
FIVE_MILLION = (784, 1600, 1600, 800, 10)


@pytest.mark.multi_worker
@pytest.mark.parametrize(
    ("workers", "cases"),
    [(2, [(HUNDRED, 6, 0.10)]), (3, [(DENSE, 2, 0.05), (HUNDRED, 6, 0.10), (OWNERS, 6, 0.10)])],
)
@pytest.mark.slow
def test_bytes_claimed_are_bytes_on_the_network(tmp_path, workers, cases):
    """The smallest of three tries counts: what else goes over the connections only adds."""
    with private_network_pool() as pool:
        workers_apart = WorkerCluster(workers, log_dir=tmp_path)

        def measure(method, steps):
            return pool.submit(
                workers_apart.run, measure_traffic, FIVE_MILLION, method, steps, timeout=180
            ).result()

        try:
            tries = [[measure(method, steps) for _ in range(3)] for method, steps, _ in cases]
        finally:
            pool.submit(workers_apart.close).result()
    for (method, steps, tolerance), results in zip(cases, tries, strict=True):
        sent = min(first[0] for first, *_ in results) / steps / workers
        _, claimed, dense = results[0][0]
        assert sent == pytest.approx(claimed, rel=tolerance)
        if (workers, method) == (2, HUNDRED):
            assert sent <= 0.25e6
            assert dense == pytest.approx(20.43e6, rel=0.001)
