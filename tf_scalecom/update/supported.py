"""What optimizers work with, this package's and plain ones; the rest is refused by name."""

from collections.abc import Mapping

import keras
import tensorflow as tf

from tf_scalecom.reduction.method import Method


def as_optimizer(optimizer):
    """The optimizer of a name or a Keras config, as `compile` takes them; others as they are."""
    if isinstance(optimizer, (str, Mapping)):
        return keras.optimizers.get(optimizer)
    return optimizer


def check_inner(optimizer) -> None:
    """Raises ValueError unless an optimizer can be wrapped."""
    advice = None
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        advice = "Wrap the other way round: LossScaleOptimizer(ScaleComOptimizer(...))."
    elif hasattr(optimizer, "compression_report"):
        advice = "Wrap once."
    elif type(optimizer).__name__ == "MultiOptimizer":
        advice = "Wrap each of its optimizers instead."
    elif not isinstance(optimizer, keras.optimizers.Optimizer):
        advice = "Pass an instance such as keras.optimizers.SGD(0.1)."
    if advice:
        raise ValueError(
            "`inner_optimizer` of ScaleComOptimizer: expected a keras.optimizers.Optimizer that "
            f"makes updates itself; received {optimizer!r}. {advice}"
        )


def check_method(method, warmup: str) -> None:
    """Raises ValueError unless gradients can be reduced by a method, with such a warm-up."""
    if not isinstance(method, Method):
        raise ValueError(
            "`method` of CompressedOptimizer: expected a method of reduction; received "
            f"{method!r}. Pass one of tf_scalecom.methods, such as methods.PowerSGD(rank=2)."
        )
    if warmup == "ramp" and not method.has_ramp:
        raise ValueError(
            f'`warmup` of CompressedOptimizer: expected "dense" with {type(method).__name__}, '
            'whose plan does not grow; received "ramp". Leave it out.'
        )


def check_takes_zeros(optimizer) -> None:
    """Refuses what makes NaN of whole rows and columns of zeros, which compression leaves."""
    too_small = 1e-16  # its square would be lost in a float32
    if isinstance(optimizer, keras.optimizers.Adafactor) and optimizer.epsilon_1 < too_small:
        raise ValueError(
            f"ScaleComOptimizer: expected Adafactor with epsilon_1 >= {too_small}; received "
            f"{optimizer.epsilon_1}, with which it divides 0 by 0 where a row and a column of a "
            f"gradient are zero. Pass Adafactor(..., epsilon_1={too_small})."
        )


def check_plain(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError if a plain optimizer would update inside a condition of a graph."""
    argument, value = "gradient_accumulation_steps", optimizer.gradient_accumulation_steps
    if not value and optimizer.use_ema:
        argument, value = "ema_overwrite_frequency", optimizer.ema_overwrite_frequency
    if value and not tf.executing_eagerly():
        raise ValueError(
            f"{type(optimizer).__name__} on several replicas: expected `{argument}=None`, as Keras "
            "has a condition for it, inside which TensorFlow lets no replica speak to another; "
            f"received {value}. Wrap it: ScaleComOptimizer(optimizer, compression_ratio=1) does "
            "the same, and sums all of the gradient."
        )


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError under a strategy, or a keras.distribution, that cannot exchange."""
    name = type(strategy).__name__
    if "ParameterServer" in name or "CentralStorage" in name:
        raise ValueError(
            "ScaleComOptimizer: expected a synchronous strategy that mirrors variables; received "
            f"{name}. Use tf_scalecom.MultiWorkerMirroredStrategy."
        )
    if keras.distribution.distribution() is not None:
        raise ValueError(
            "ScaleComOptimizer: expected tf.distribute to join the replicas; received "
            f"{keras.distribution.distribution()!r} from keras.distribution. Unset it with "
            "keras.distribution.set_distribution(None)."
        )
