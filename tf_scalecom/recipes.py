"""Wraps an optimizer in the way that was measured to lose least (docs/recipe.md)."""

import numbers

import keras
import tensorflow as tf

from tf_scalecom.compressed_optimizer import CompressedOptimizer
from tf_scalecom.optimizer import ScaleComOptimizer
from tf_scalecom.reduction.method import Method
from tf_scalecom.update.first_moment import first_moment
from tf_scalecom.update.supported import as_optimizer, check_inner

# What is left of the rate that momentum multiplies: all of it diverges.
_RATE_WITHOUT_MOMENTUM = 0.5
_LEAST_BETA_2 = 0.999
_RAMP_SHARE = 5  # a fifth of the steps
# Their update is their momentum: nothing is known of them without.
_OF_MOMENTUM = ("Lion", "Muon")


@keras.saving.register_keras_serializable(package="tf_scalecom")
class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule times a factor.

    Args:
        schedule: a Keras learning rate schedule.
        factor: number.
    """

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, factor: float):
        super().__init__()
        self.schedule = schedule
        self.factor = factor

    def __call__(self, step):
        return self.factor * self.schedule(step)

    def get_config(self):
        schedule = keras.optimizers.schedules.serialize(self.schedule)
        return {"schedule": schedule, "factor": self.factor}

    @classmethod
    def from_config(cls, config):
        schedule = keras.optimizers.schedules.deserialize(config["schedule"])
        return cls(schedule, config["factor"])


def recipe(
    optimizer: keras.optimizers.Optimizer | str,
    *,
    steps: int,
    method: Method | None = None,
    **arguments,
) -> CompressedOptimizer:
    """Wraps an optimizer, changed so that compression costs little accuracy; prints the changes.

    * Momentum is off, and the learning rate half of what momentum was worth: in place of
      `SGD(0.1, momentum=0.9)` it is `SGD(0.5)`. Weight decay stays what it was in a step.
    * Adam and its kin keep no mean of gradients, `beta_1=0`, and have a `beta_2` of 0.999 or more.
    * All but SGD have a ramp over a fifth of the steps.

    Measured with `SGD` and `Adam`. The schedule of the learning rate is left to you: let it rise
    over the first 10 % of the steps (Adam: 20 %), then fall to zero.

    Args:
        optimizer: a new Keras optimizer, which stays as it is, or its name.
        steps: updates of the whole training: epochs * batches of an epoch.
        method: of `tf_scalecom.methods`; by default `CltK`, of the arguments.
        **arguments: of `ScaleComOptimizer`, such as `compression_ratio`, or with a method of
            `CompressedOptimizer`; they come first.

    Raises:
        ValueError: an argument is out of its range, or the optimizer has been built, or cannot do
            without momentum, or has a learning rate that cannot be scaled.

    Example:

    ```python
    optimizer = tf_scalecom.recipe(keras.optimizers.Adam(1e-3), steps=epochs * batches)
    ```
    """
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral) or steps < 1:
        raise ValueError(
            f"recipe: expected steps as an integer >= 1; received {steps!r}. Pass the updates of "
            "the whole training, epochs * batches of an epoch."
        )
    steps = int(steps)
    optimizer = as_optimizer(optimizer)
    check_inner(optimizer)
    name = type(optimizer).__name__
    if name in _OF_MOMENTUM:
        raise ValueError(
            f"recipe: expected an optimizer that can do without momentum; received {name}. Take "
            "SGD or Adam, with which it was measured, or wrap it by ScaleComOptimizer as it is."
        )
    if optimizer.built:
        raise ValueError(
            f"recipe: expected an optimizer that has not been built; received {name} with "
            "variables, which its replacement would not have. Make a new one."
        )
    said = []
    if changes := _changes(optimizer):
        config = optimizer.get_config()
        optimizer = type(optimizer).from_config({**config, **changes})
        said += [f"{key}: {_text(config[key])} -> {_text(changes[key])}" for key in changes]
    warmup: dict = {}
    if not isinstance(optimizer, keras.optimizers.SGD):
        warmup = {"warmup_steps": -(-steps // _RAMP_SHARE), "warmup": "ramp"}
        said += [f"{key}={value!r}" for key, value in warmup.items() if key not in arguments]
    if tf.distribute.get_strategy().extended.should_checkpoint:  # one worker speaks for all
        print(f"tf_scalecom.recipe: {name}: {', '.join(said) or 'nothing to change'}", flush=True)
    arguments = {**warmup, **arguments}
    if method is not None:
        return CompressedOptimizer(optimizer, method, **arguments)
    return ScaleComOptimizer(optimizer, **arguments)


def _changes(optimizer) -> dict:
    """Settings of an optimizer that the recipe has otherwise, by their names in its config."""
    moments = first_moment(optimizer)
    changes: dict = dict.fromkeys(moments, 0.0)
    if "momentum" in moments:
        if getattr(optimizer, "nesterov", False):
            changes["nesterov"] = False
        factor = _RATE_WITHOUT_MOMENTUM / (1 - moments["momentum"])
        changes["learning_rate"] = _scaled_rate(optimizer, factor)
        if optimizer.weight_decay:  # which Keras multiplies by the rate
            changes["weight_decay"] = optimizer.weight_decay / factor
    if "beta_1" in moments and getattr(optimizer, "beta_2", 1) < _LEAST_BETA_2:
        changes["beta_2"] = _LEAST_BETA_2
    return changes


def _scaled_rate(optimizer, factor):
    rate = optimizer.get_config()["learning_rate"]
    if isinstance(rate, (int, float)):
        return rate * factor
    schedule = keras.saving.deserialize_keras_object(rate)
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return ScaledSchedule(schedule, factor)
    raise ValueError(
        "recipe: expected a learning rate that is a number or a LearningRateSchedule, to scale it "
        f"by {factor:g}; received {schedule!r}. Pass one of them."
    )


def _text(setting):
    if isinstance(setting, ScaledSchedule):
        return f"{setting.factor:g} times that"
    if isinstance(setting, dict):
        return setting.get("class_name", "schedule")
    return f"{setting:g}" if isinstance(setting, float) else str(setting)
