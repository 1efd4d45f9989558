"""What changes over a run: learning rate, compression ratio, beta."""

import dataclasses
import math
from collections.abc import Sequence

from tf_scalecom.layout import Layout
from tf_scalecom.simulate.config import RAMP_STAGES, SimulationConfig

# Beta changes in steps of this size: the kernels are prepared anew for each value.
_BETA_DIGITS = 2


def learning_rate(config: SimulationConfig, step: int) -> float:
    """A linear rise over a share `lr_warmup` of the steps, then the decay."""
    rise = config.lr_warmup * config.steps
    if step < rise:
        return config.learning_rate * (step + 1) / math.ceil(rise)
    done = (step - rise) / (config.steps - rise)
    if config.decay == "cosine":
        return config.learning_rate * (1 + math.cos(math.pi * done)) / 2
    if config.decay == "linear":
        return config.learning_rate * (1 - done)
    return config.learning_rate


class LayoutSchedule:
    """The plan of each step.

    Args:
      config: says ratio, ramp, warm-up and beta.
      variables: the model's trainable variables.
    """

    def __init__(self, config: SimulationConfig, variables: Sequence):
        self._config = config
        self._variables = variables
        self._plans: dict[tuple, Layout] = {}
        self._selection = "exact" if config.method == "mean_top_k" else config.selection
        self.final = self._planned(config.compression_ratio, self._selection)
        self._dense = self.final.without_compression()

    def layout(self, step: int) -> Layout:
        """What travels in a step; nothing compressed in warm-up and by the dense method."""
        if self._config.method == "dense" or step < self._config.warmup_steps:
            return self._dense
        planned = self._planned(self._ratio(step), self._selection)
        return dataclasses.replace(planned, beta=self._beta(step))

    def exact_layout(self, step: int) -> Layout:
        """The plan of the exact selection of about as many elements."""
        return self._planned(self._ratio(step), "exact")

    def _ratio(self, step):
        config = self._config
        since = step - config.warmup_steps
        if since >= config.ratio_ramp:
            return config.compression_ratio
        stage = since * RAMP_STAGES // config.ratio_ramp
        growth = config.compression_ratio / config.initial_ratio
        return config.initial_ratio * growth ** (stage / RAMP_STAGES)

    def _beta(self, step):
        config = self._config
        if config.final_beta is None:
            return config.beta
        done = (step - config.warmup_steps) / max(1, config.steps - 1 - config.warmup_steps)
        beta = config.beta + (config.final_beta - config.beta) * done
        return max(round(beta, _BETA_DIGITS), 10**-_BETA_DIGITS)

    def _planned(self, ratio, selection) -> Layout:
        if (ratio, selection) not in self._plans:
            compression = self._config.compression(ratio, selection)
            self._plans[ratio, selection] = compression.layout(self._variables)
        return self._plans[ratio, selection]
