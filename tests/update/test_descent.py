"""SGD that changes only what was sent, against Keras's own update of dense gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from local_strategies import make_strategy

import tf_scalecom as sc


class DenseSGD(keras.optimizers.SGD):
    """Not SGD itself, so that nothing is known of its update."""


WAYS = {
    "plain": ({}, {}),
    "bfloat16_wire": ({}, dict(value_dtype="bfloat16", chunk_keep=3)),
    "filtered": ({}, dict(beta=0.3, selection="exact")),
    "warm_up": ({}, dict(warmup_steps=2)),
    "ramp": ({}, dict(warmup_steps=4, warmup="ramp")),
    "accumulated": (dict(gradient_accumulation_steps=2), {}),
    "clipped": (dict(clipnorm=1.0), {}),
    "scaled": (dict(loss_scale_factor=8.0), {}),
    "schedule": (
        dict(learning_rate=keras.optimizers.schedules.InverseTimeDecay(0.3, 1, 0.5)),
        {},
    ),
}


def trained(kind, arguments, compression, steps=6, not_finite_at=3):
    """Weights and residuals of a matrix, a vector and a small one, and what the report says."""
    strategy = make_strategy("scalecom_ops")
    rng = np.random.default_rng(0)
    shapes = [(40, 50), (1_237,), (7,)]
    with strategy.scope():
        variables = [
            keras.Variable(rng.normal(size=shape).astype(np.float32), name=f"v{i}")
            for i, shape in enumerate(shapes)
        ]
        optimizer = sc.ScaleComOptimizer(kind(**arguments), 10, **compression)
        optimizer.build(variables)
    gradients = rng.normal(size=(steps, 2, sum(map(np.prod, shapes)))).astype(np.float32)
    gradients[not_finite_at, 1, 5] = np.nan

    @tf.function(autograph=False)
    def step(values):
        def on_replica(values):
            parts = tf.split(values, [int(np.prod(shape)) for shape in shapes])
            parts = [tf.reshape(p, shape) for p, shape in zip(parts, shapes, strict=True)]
            optimizer.apply(parts, variables)

        strategy.run(on_replica, args=(values,))

    for of_step in gradients:
        step(
            strategy.experimental_distribute_values_from_function(
                lambda context, of_step=of_step: tf.constant(
                    of_step[context.replica_id_in_sync_group]
                )
            )
        )
    report = optimizer.compression_report()
    residuals = [part for parts in optimizer.residuals.values() for part in parts]
    return [v.numpy() for v in variables], residuals, int(optimizer.skipped_steps.numpy()), report


@pytest.mark.parametrize("way", WAYS)
def test_equals_the_dense_update_to_the_bit(way):
    arguments, compression = WAYS[way]
    arguments = {"learning_rate": 0.3, **arguments}
    *got, report = trained(keras.optimizers.SGD, arguments, compression)
    *expected, dense_report = trained(DenseSGD, arguments, compression)
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    assert got[-1] == 1
    assert report.in_place == ("v0", "v1") and not dense_report.in_place
    assert "updated in place, where something was sent: 2 variables" in str(report)
    assert "in place" not in str(dense_report)


@pytest.mark.parametrize(
    "arguments",
    [dict(momentum=0.9), dict(weight_decay=0.1), dict(use_ema=True)],
    ids=["momentum", "weight_decay", "ema"],
)
def test_what_moves_other_elements_is_applied_to_all(arguments):
    *_, report = trained(keras.optimizers.SGD, arguments, {})
    assert not report.in_place


def test_a_constraint_and_another_dtype_have_all_elements_updated():
    layer = keras.layers.Dense(50, kernel_constraint="max_norm")
    half = keras.layers.Dense(50, dtype="float16")
    whole = keras.layers.Dense(50)
    model = keras.Sequential([keras.Input((40,)), layer, half, whole])
    optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), 10)
    optimizer.build(model.trainable_variables)
    assert optimizer.compression_report(2).in_place == (whole.kernel.path,)
