"""Optimizer steps on gradients that are known beforehand, one for each replica."""

import keras
import numpy as np
import tensorflow as tf
from cases import EXCHANGES, Case

import tf_scalecom as sc

CASES = {
    case.name: case
    for case in (*EXCHANGES, Case("int8_wire", value_dtype="int8", compression_ratio=10))
}
SHAPE = (61, 50)


def known_gradients(steps, replicas, integers=False):
    rng = np.random.default_rng(1)
    shape = (steps, replicas, *SHAPE)
    values = rng.integers(-20, 21, shape) if integers else rng.normal(size=shape)
    return values.astype(np.float32)


def apply_known_gradients(strategy, case, steps, integers=False, **arguments):
    """Applies known gradients; SGD at learning rate 1 from zero shows the sum of all reduced."""
    gradients = known_gradients(steps, strategy.num_replicas_in_sync, integers)
    with strategy.scope():
        variable = keras.Variable(np.zeros(SHAPE, np.float32), name="w")
        inner = keras.optimizers.SGD(1.0)
        optimizer = sc.ScaleComOptimizer(inner, **case.optimizer_arguments(), **arguments)
        optimizer.build([variable])

    @tf.function
    def step(gradient):
        strategy.run(lambda g: optimizer.apply([g], [variable]), args=(gradient,))

    history = []
    for t in range(steps):
        step(
            strategy.experimental_distribute_values_from_function(
                lambda context, t=t: tf.constant(gradients[t, context.replica_id_in_sync_group])
            )
        )
        residuals = optimizer.residuals.get("w", ())
        history.append((variable.numpy(), residuals))
    return history
