"""One contract for all of Keras's optimizers, on worker processes: stock, wrapped, compressed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import OPTIMIZERS

import tf_scalecom as sc

ROWS, INPUTS, OUTPUTS = 24, 40, 30  # a kernel of 1,200 elements is compressed, the bias is not


def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, INPUTS)).astype(np.float32)
    return x, (x @ rng.normal(size=(INPUTS, OUTPUTS)) + 1).astype(np.float32)


def regression(strategy, worker, workers, name, compression_ratio, steps):
    """Trains on every `workers`-th row; returns the loss on all rows before and after, weights.

    Args:
        compression_ratio: None is the stock optimizer.
    """
    x, y = rows()
    mine = tf.constant(x[worker::workers]), tf.constant(y[worker::workers])
    with strategy.scope():
        kernel = keras.Variable(np.full((INPUTS, OUTPUTS), 0.1, np.float32))
        bias = keras.Variable(np.zeros(OUTPUTS, np.float32))
        optimizer = getattr(keras.optimizers, name)(**OPTIMIZERS[name])
        if compression_ratio:
            optimizer = sc.ScaleComOptimizer(optimizer, compression_ratio)
        optimizer.build([kernel, bias])

    def on_replica():
        with tf.GradientTape() as tape:
            error = mine[0] @ kernel + bias - mine[1]
            loss = tf.reduce_mean(error**2) / workers
        optimizer.apply(tape.gradient(loss, [kernel.value, bias.value]), [kernel, bias])

    def step():
        strategy.run(on_replica)

    def loss():
        return float(((x @ kernel.numpy() + bias.numpy() - y) ** 2).mean())

    # Traced where it is long, eager where a trace would take longer than the steps.
    step = tf.function(step) if compression_ratio == 100 else step
    before = loss()
    for _ in range(steps):
        step()
    return before, loss(), kernel.numpy(), bias.numpy()


# Those that differ in kind. A mean over three is rounded, one over two is not.
ON_THREE = ("Adam", "Lamb", "Muon")


def all_ways(strategy, workers, names):
    worker = strategy.extended._id_in_cluster
    return {
        name: {
            "stock": regression(strategy, worker, workers, name, None, steps=4),
            "ratio 1": regression(strategy, worker, workers, name, 1, steps=4),
            "ratio 100": regression(strategy, worker, workers, name, 100, steps=20),
        }
        for name in names
    }


def test_the_table_has_all_optimizers():
    wrappers = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
    exported = {
        name
        for name, kind in vars(keras.optimizers).items()
        if isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)
    }
    assert set(OPTIMIZERS) == exported - wrappers


@pytest.fixture(scope="module")
def alone():
    strategy = tf.distribute.get_strategy()
    return {name: regression(strategy, 0, 1, name, None, steps=4) for name in OPTIMIZERS}


@pytest.mark.parametrize(("workers", "names"), [(2, tuple(OPTIMIZERS)), (3, ON_THREE)])
def test_every_optimizer(cluster, workers, names, alone):
    first, *others = cluster(workers).run(all_ways, workers, names, timeout=240)
    for name, ways in first.items():
        for stock, wrapped, one in zip(ways["stock"], ways["ratio 1"], alone[name], strict=True):
            np.testing.assert_array_equal(wrapped, stock, err_msg=name)
            np.testing.assert_allclose(stock, one, rtol=1e-4, atol=1e-5, err_msg=name)
        before, after, *_ = ways["ratio 100"]
        assert after < before, name
        for other in others:
            for way, mine in ways.items():
                for a, b in zip(mine, other[name][way], strict=True):
                    np.testing.assert_array_equal(a, b, err_msg=f"{name}, {way}")
