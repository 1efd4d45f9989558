"""What changes over a run: learning rate, what is sent, beta."""

import dataclasses
import math
from collections.abc import Sequence

from tf_scalecom.simulate.config import SimulationConfig
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.warmup import Stage, layout_at, warmup_stages

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
        config: says ratio, warm-up and beta.
        variables: the model's trainable variables.

    Attributes:
        final: the plan after the warm-up, with the first beta.
    """

    def __init__(self, config: SimulationConfig, variables: Sequence):
        self._config = config
        self._variables = variables
        selection = "exact" if config.method == "mean_top_k" else config.selection
        self.final, self._stages = self._planned(selection)
        self._dense = self.final.without_compression()
        self._exact = self._planned("exact")

    def layout(self, step: int) -> Layout:
        """What travels in a step; nothing compressed by the dense method."""
        if self._config.method == "dense":
            return self._dense
        planned = layout_at(step, self._stages, self.final)
        return dataclasses.replace(planned, beta=self._beta(step))

    def exact_layout(self, step: int) -> Layout:
        """The plan of the exact selection of about as many elements."""
        layout, stages = self._exact
        return layout_at(step, stages, layout)

    def _beta(self, step):
        config = self._config
        if config.final_beta is None:
            return config.beta
        done = (step - config.warmup_steps) / max(1, config.steps - 1 - config.warmup_steps)
        beta = config.beta + (config.final_beta - config.beta) * max(0, done)
        return max(round(beta, _BETA_DIGITS), 10**-_BETA_DIGITS)

    def _planned(self, selection) -> tuple[Layout, tuple[Stage, ...]]:
        """The plan after the warm-up, and those of its stages."""
        config = self._config
        compression = config.compression(selection)
        stages = warmup_stages(compression, self._variables, config.warmup, config.warmup_steps)
        return compression.layout(self._variables), stages
