"""What changes over a run: learning rate, what is sent, beta."""

import dataclasses
import functools
import math
from collections.abc import Sequence

from tf_scalecom.reduction.clt_k import CltK
from tf_scalecom.reduction.method import Method
from tf_scalecom.simulate.config import SimulationConfig
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.plan import Plan
from tf_scalecom.wire.warmup import Stage, plan_at, warmup_stages

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


class PlanSchedule:
    """The plan of each step.

    Args:
        config: says warm-up and beta.
        method: the method of reduction.
        variables: the model's trainable variables.

    Attributes:
        final: the plan after the warm-up, with the first beta.
    """

    def __init__(self, config: SimulationConfig, method: Method, variables: Sequence):
        self._config = config
        self._variables = variables
        self.final, self._stages = self._planned(method)
        self._exact = self._planned(CltK(**config.compression("exact").get_config()))

    def plan(self, step: int) -> Plan:
        """What travels in a step."""
        planned = plan_at(step, self._stages, self.final)
        if isinstance(planned, Layout):
            return dataclasses.replace(planned, beta=self.beta(step))
        return planned

    def exact_plan(self, step: int) -> Plan:
        """The plan of the exact selection of about as many elements."""
        plan, stages = self._exact
        return plan_at(step, stages, plan)

    def beta(self, step: int) -> float:
        """The filter's beta in a step."""
        config = self._config
        if config.final_beta is None:
            return config.beta
        done = (step - config.warmup_steps) / max(1, config.steps - 1 - config.warmup_steps)
        beta = config.beta + (config.final_beta - config.beta) * max(0, done)
        return max(round(beta, _BETA_DIGITS), 10**-_BETA_DIGITS)

    def _planned(self, method) -> tuple[Plan, tuple[Stage, ...]]:
        """The plan after the warm-up, and those of its stages."""
        config = self._config
        plan = functools.partial(method.plan, self._variables)
        return plan(), warmup_stages(plan, config.warmup, config.warmup_steps)
