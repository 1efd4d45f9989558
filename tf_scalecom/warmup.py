"""The warm-up: other plans than the usual one for the first steps."""

import dataclasses
from collections.abc import Sequence

from tf_scalecom.compression import CompressionConfig
from tf_scalecom.layout import Layout

# A ramp's ratios grow in this many stages, each of which has a graph of its own.
STAGES = 5


@dataclasses.dataclass(frozen=True)
class Stage:
    """Some steps with one plan: those before `end` that belong to no stage before."""

    end: int
    layout: Layout


def warmup_stages(
    config: CompressionConfig, variables: Sequence, warmup: str, steps: int
) -> tuple[Stage, ...]:
    """The plans of the first steps. After the last stage the plan is `config.layout(variables)`.

    Args:
      config: what is sent after the warm-up.
      variables: in the order of `build(variables)`.
      warmup: "dense", as the paper does; or "ramp", by which ratios grow geometrically from
        `compression.WARMUP_RATIO` in `STAGES` stages, after Deep Gradient Compression (Lin et al.,
        2018).
      steps: length of the warm-up; the stages share it out.
    """
    if warmup == "dense":
        return (Stage(steps, config.layout(variables).without_compression()),) if steps else ()
    # The step s is in stage s * STAGES // steps.
    ends = [-(-steps * (i + 1) // STAGES) for i in range(STAGES)]
    return tuple(
        Stage(end, config.layout(variables, growth=i / STAGES))
        for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))
        if begin < end
    )


def layout_at(step: int, stages: Sequence[Stage], layout: Layout) -> Layout:
    """The plan of a step, counted from 0; `layout` is that after the last stage."""
    return next((stage.layout for stage in stages if step < stage.end), layout)
