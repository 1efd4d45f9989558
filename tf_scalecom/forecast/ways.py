"""Every way to exchange a model's gradients on one cluster, in numbers."""

import dataclasses
import functools

from tf_scalecom.forecast import performance
from tf_scalecom.forecast.performance import Exchange, Hardware, StepTime
from tf_scalecom.wire.layout import Layout
from tf_scalecom.wire.low_rank import LowRankPlan


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What to predict.

    Attributes:
        layouts: CLT-k's plans of one model, of one or more ratios and dtypes of values.
        hardware: on what.
        compute_seconds: of a step with nothing exchanged.
        bucket_bytes: as in `Layout.buckets`.
        owners: plans of the same model for `methods.OwnersTopK`.
        low_rank: plans for `methods.PowerSGD`.
    """

    layouts: tuple[tuple[str, Layout], ...]
    hardware: Hardware
    compute_seconds: float
    bucket_bytes: float
    owners: tuple[tuple[str, Layout], ...] = ()
    low_rank: tuple[tuple[str, LowRankPlan], ...] = ()


@dataclasses.dataclass(frozen=True)
class Forecast:
    """One way to exchange gradients.

    Attributes:
        method: its name.
        layout: CLT-k's plan; None for another way.
        hierarchical: whether a worker's replicas sum first.
        exchange: what it moves.
        time: seconds of a step.
        speed_up: step time of dense float32 / its own.
        break_even_bytes_per_second: of a link, below which it is faster than dense float32; 0:
            never, infinity: at any.
    """

    method: str
    layout: Layout | None
    hierarchical: bool
    exchange: Exchange
    time: StepTime
    speed_up: float
    break_even_bytes_per_second: float


def forecasts(scenario: Scenario) -> list[Forecast]:
    """Dense float32, dense float16, then each layout; each hierarchical, too, with replicas.

    Then the other methods.
    """
    hardware = scenario.hardware
    ways = _ways(
        scenario.layouts,
        scenario.owners,
        scenario.low_rank,
        scenario.bucket_bytes,
        hardware.workers,
        hardware.replicas_per_worker,
    )
    times = [performance.step_time(way[-1], hardware, scenario.compute_seconds) for way in ways]
    dense = ways[0][-1]
    return [
        Forecast(
            *way,
            time,
            times[0].step_seconds / time.step_seconds,
            performance.break_even_bytes_per_second(way[-1], dense, hardware),
        )
        for way, time in zip(ways, times, strict=True)
    ]


# Counting bytes takes far longer than dividing them by speeds, which a plot does hundreds of times.
@functools.lru_cache
def _ways(
    layouts, owners, low_rank, bucket_bytes, workers, replicas_per_worker
) -> list[tuple[str, Layout | None, bool, Exchange]]:
    """(method, layout, hierarchical, exchange) of each forecast."""
    model, replicas = layouts[0][1], workers * replicas_per_worker
    ways: list[tuple[str, Layout | None, bool, Exchange]] = [
        ("dense", None, False, performance.dense_exchange(model, replicas)),
        ("dense float16", None, False, performance.float16_exchange(model, replicas)),
    ]
    counts = (bucket_bytes, workers, replicas_per_worker)
    for name, layout in layouts:
        ways.append((name, layout, False, performance.compressed_exchange(layout, *counts)))
    if replicas_per_worker > 1:
        for name, layout in layouts:
            exchange = performance.hierarchical_exchange(layout, *counts)
            ways.append((f"{name}, hierarchical", layout, True, exchange))
    for name, layout in owners:
        ways.append((name, None, False, performance.owners_exchange(layout, *counts)))
    for name, plan in low_rank:
        ways.append((name, None, False, performance.low_rank_exchange(plan, *counts)))
    return ways
