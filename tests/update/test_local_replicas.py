"""Workers that train on several devices each: two CPU processes of two logical CPUs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from digits import dense_model, digest, digits
from known_gradients import CASES, SHAPE, apply_known_gradients, known_gradients
from reference import scalecom_step
from small_classifier import alone, assert_equal, train_on_arrays

import tf_scalecom as sc

WORKERS, DEVICES = 2, 2
REPLICAS = WORKERS * DEVICES


@pytest.fixture
def split_cluster(cluster):
    return cluster(WORKERS, logical_cpus=DEVICES)


def test_training_equals_one_replica_with_the_whole_batch(split_cluster):
    arguments = {"optimizer": "sgd", "batch_size": 8 * REPLICAS}
    expected = alone(**arguments)
    for result in split_cluster.run(train_on_arrays, timeout=150, **arguments):
        assert_equal(result, expected)


@pytest.mark.parametrize("name", ["top1", "top10_filtered"])
def test_replicas_agree_with_the_specification(split_cluster, name):
    case, steps = CASES[name], 5
    histories = split_cluster.run(apply_known_gradients, case, steps, timeout=120)
    gradients = known_gradients(steps, REPLICAS).reshape(steps, REPLICAS, -1)
    tensor = case.layout(SHAPE).tensors[0]
    residuals = np.zeros(gradients.shape[1:], np.float32)
    value = np.zeros(gradients.shape[2], np.float32)
    for t in range(steps):
        reduced, residuals, _ = scalecom_step(
            residuals,
            gradients[t],
            t % REPLICAS,
            case.beta,
            tensor.chunk_size,
            tensor.chunk_keep,
            tensor.compression_ratio,
            np.float32,
        )
        value -= reduced
        weights, _ = histories[0][t]
        np.testing.assert_allclose(weights.ravel(), value, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(weights, histories[1][t][0])
        held = [residual.ravel() for history in histories for residual in history[t][1]]
        np.testing.assert_allclose(held, residuals, rtol=1e-5, atol=1e-6)


def apply_summed_by_collectives(strategy, *arguments, **named):
    """As on GPUs, where the sums inside a worker are NCCL's."""
    operations = strategy.extended.make_local_cross_device_ops()
    strategy.extended.local_cross_device_ops = operations
    history = apply_known_gradients(strategy, *arguments, **named)
    assert all(launcher.ended.numpy() == len(history) for launcher in operations._launchers)
    return history


@pytest.mark.parametrize("apply", [apply_known_gradients, apply_summed_by_collectives])
def test_a_hierarchical_exchange_is_one_between_workers(split_cluster, apply):
    case, steps = CASES["top1"], 5
    histories = split_cluster.run(apply, case, steps, hierarchical=True)
    gradients = known_gradients(steps, REPLICAS).reshape(steps, WORKERS, DEVICES, -1).sum(axis=2)
    tensor = case.layout(SHAPE).tensors[0]
    residuals = np.zeros(gradients.shape[1:], np.float32)
    value = np.zeros(gradients.shape[2], np.float32)
    for t in range(steps):
        reduced, residuals, _ = scalecom_step(
            residuals,
            gradients[t],
            t % WORKERS,
            case.beta,
            tensor.chunk_size,
            tensor.chunk_keep,
            tensor.compression_ratio,
            np.float32,
        )
        value -= reduced
        for worker, history in enumerate(histories):
            weights, (residual,) = history[t]
            np.testing.assert_allclose(weights.ravel(), value, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(residual.ravel(), residuals[worker], rtol=1e-5, atol=1e-6)


def test_a_hierarchical_exchange_needs_workers():
    optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), hierarchical=True)
    with pytest.raises(ValueError, match="MultiWorkerMirroredStrategy"):
        optimizer.build([keras.Variable(np.zeros((50, 40), np.float32))])


def fit_uneven(strategy, steps_per_execution, hierarchical):
    """Worker 1 has fewer batches, and the last is one that only its first device gets."""
    rank = strategy.cluster_resolver.task_id
    x, y = digits(16 * 4 + 8 if rank == 0 else 16 * 2 + 1, seed=rank)
    model = dense_model(
        strategy,
        lambda: sc.ScaleComOptimizer(
            keras.optimizers.SGD(0.1),
            10,
            beta=0.5,
            warmup_steps=3,
            warmup="ramp",
            hierarchical=hierarchical,
        ),
        steps_per_execution=steps_per_execution,
    )
    data = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensor_slices((x, y)).batch(16 // DEVICES)
    )
    losses = model.fit(data, epochs=4, verbose=0).history["loss"]
    replicas = [
        digest(strategy.experimental_local_results(v.value)[i] for v in model.trainable_variables)
        for i in range(DEVICES)
    ]
    finite = all(np.isfinite(v.numpy()).all() for v in model.variables)
    return replicas, losses, finite, int(model.optimizer.skipped_steps.numpy())


@pytest.mark.parametrize(("steps_per_execution", "hierarchical"), [(1, False), (3, True)])
def test_uneven_data_end_together_and_all_replicas_stay_bit_equal(
    split_cluster, steps_per_execution, hierarchical
):
    results = split_cluster.run(fit_uneven, steps_per_execution, hierarchical, timeout=150)
    assert len({replica for replicas, *_ in results for replica in replicas}) == 1
    for _, losses, finite, skipped in results:
        assert losses == results[0][1] and losses[-1] < losses[0]
        assert finite and skipped == 0
