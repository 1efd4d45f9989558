"""The warm-up: other plans than the usual one for the first steps."""

import dataclasses
from collections.abc import Callable, Sequence

from tf_scalecom.wire.plan import Plan

# A ramp's ratios grow in this many stages, each of which has a graph of its own.
STAGES = 5


@dataclasses.dataclass(frozen=True)
class Stage:
    """Some steps with one plan: those before `end` that belong to no stage before."""

    end: int
    plan: Plan


def warmup_stages(
    plan_at_growth: Callable[[float], Plan], warmup: str, steps: int
) -> tuple[Stage, ...]:
    """The plans of the first steps. After the last stage the plan is that of growth 1.

    Args:
        plan_at_growth: the plan of the same variables at a growth in [0, 1] of compression.
        warmup: "dense", as the paper does; or "ramp", by which ratios grow geometrically from
            `config.WARMUP_RATIO` in `STAGES` stages, after Deep Gradient Compression (Lin et al.,
            2018).
        steps: length of the warm-up; the stages share it out.
    """
    if not steps:
        return ()
    plan = plan_at_growth(1.0)
    if warmup == "dense":
        return (Stage(steps, plan.without_compression()),)
    stages: list[Stage] = []
    for i in reversed(range(STAGES)):  # the step s is in stage s * STAGES // steps
        begin, end = (-(-steps * edge // STAGES) for edge in (i, i + 1))
        earlier = plan_at_growth(i / STAGES)
        # A stage that sends what the one after it sends, e.g. at small ratios, is part of that.
        if begin < end and _chunks(earlier) != _chunks(plan):
            stages.insert(0, Stage(end, earlier))
            plan = earlier
    return tuple(stages)


def _chunks(plan):
    return [(tensor.chunk_size, tensor.kept) for tensor in plan.tensors]


def plan_at(step: int, stages: Sequence[Stage], plan: Plan) -> Plan:
    """The plan of a step, counted from 0; `plan` is that after the last stage."""
    return next((stage.plan for stage in stages if step < stage.end), plan)
