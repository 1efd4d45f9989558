"""Learning rates over the steps of a training run."""

from collections.abc import Sequence

import keras


def ramp_then_cosine(
    peak: float, steps: int, ramp_steps: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Rises linearly from 0 to the peak, then falls to 0 along a cosine."""
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=peak,
        warmup_steps=ramp_steps,
        decay_steps=steps - ramp_steps,
    )


@keras.saving.register_keras_serializable(package="tf_scalecom_models")
class RampThenDrops(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from 0 to the peak, then is multiplied by `factor` at each of `drops`.

    Args:
        peak: learning rate after the ramp.
        ramp_steps: steps of the ramp; 0 starts at the peak.
        drops: steps at which the rate falls.
        factor: what it is multiplied by each time.
    """

    def __init__(self, peak: float, ramp_steps: int, drops: Sequence[int], factor: float):
        super().__init__()
        self.peak = peak
        self.ramp_steps = ramp_steps
        self.drops = list(drops)
        self.factor = factor

    def __call__(self, step):
        ops = keras.ops
        step = ops.cast(step, "float32")
        ramp = ops.minimum(1.0, step / max(1, self.ramp_steps)) if self.ramp_steps else 1.0
        passed = sum(ops.cast(step >= drop, "float32") for drop in self.drops)
        return self.peak * ramp * ops.power(self.factor, passed)

    def get_config(self):
        return {
            "peak": self.peak,
            "ramp_steps": self.ramp_steps,
            "drops": self.drops,
            "factor": self.factor,
        }


@keras.saving.register_keras_serializable(package="tf_scalecom_models")
class Noam(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to the peak, then falls as the inverse square root of the step.

    "Attention Is All You Need" (Vaswani et al., 2017), section 5.3. There the peak is
    (width * ramp_steps) ** -0.5: 7.0e-4 at width 512 and 4,000 steps.

    Args:
        peak: learning rate at the end of the ramp.
        ramp_steps: steps of the ramp, >= 1.
    """

    def __init__(self, peak: float, ramp_steps: int):
        super().__init__()
        self.peak = peak
        self.ramp_steps = ramp_steps

    def __call__(self, step):
        ops = keras.ops
        ramps = (ops.cast(step, "float32") + 1.0) / self.ramp_steps
        return self.peak * ops.minimum(ramps, ops.rsqrt(ramps))

    def get_config(self):
        return {"peak": self.peak, "ramp_steps": self.ramp_steps}
