"""The warm-up: other plans than the usual one for the first steps."""

import dataclasses
from collections.abc import Sequence

from tf_scalecom.wire.config import CompressionConfig
from tf_scalecom.wire.layout import Layout

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
            `config.WARMUP_RATIO` in `STAGES` stages, after Deep Gradient Compression (Lin et al.,
            2018).
        steps: length of the warm-up; the stages share it out.
    """
    if not steps:
        return ()
    layout = config.layout(variables)
    if warmup == "dense":
        return (Stage(steps, layout.without_compression()),)
    stages: list[Stage] = []
    for i in reversed(range(STAGES)):  # the step s is in stage s * STAGES // steps
        begin, end = (-(-steps * edge // STAGES) for edge in (i, i + 1))
        earlier = config.layout(variables, growth=i / STAGES)
        # A stage that sends what the one after it sends, e.g. at small ratios, is part of that.
        if begin < end and _chunks(earlier) != _chunks(layout):
            stages.insert(0, Stage(end, earlier))
            layout = earlier
    return tuple(stages)


def _chunks(layout):
    return [(tensor.chunk_size, tensor.kept) for tensor in layout.tensors]


def layout_at(step: int, stages: Sequence[Stage], layout: Layout) -> Layout:
    """The plan of a step, counted from 0; `layout` is that after the last stage."""
    return next((stage.layout for stage in stages if step < stage.end), layout)
