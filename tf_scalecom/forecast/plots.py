"""Step time against bandwidth and workers, drawn."""

import dataclasses
import pathlib

from tf_scalecom.base.pictures import pyplot
from tf_scalecom.base.whole_files import written_whole
from tf_scalecom.forecast.ways import Scenario, forecasts

_GBITS = tuple(400 ** (i / 40) for i in range(41))
_WORKERS = tuple(dict.fromkeys(round(8 * 1250 ** (i / 40)) for i in range(41)))
_GROUPS = (8, 100, 1_000, 10_000)
_GBIT = 1e9 / 8  # bytes


def draw(scenario: Scenario, path: pathlib.Path) -> bool:
    """Draws a scenario at 1 to 400 Gbit/s, at 8 to 10,000 workers, and both at once.

    Returns:
        False, and no picture, without matplotlib.
    """
    plt = pyplot()
    if plt is None:
        return False
    hardware = scenario.hardware
    gbits = hardware.link_bytes_per_second / _GBIT
    figure, (bandwidths, workers, both) = plt.subplots(1, 3, figsize=(15, 4.5))
    lines = _draw_methods(bandwidths, scenario, "link_bytes_per_second", _GBITS, _GBIT)
    bandwidths.set_title(f"{hardware.workers:,} workers", fontsize=10)
    _draw_methods(workers, scenario, "workers", _WORKERS, 1)
    workers.set_title(f"{gbits:g} Gbit/s", fontsize=10)
    for count in _GROUPS:
        varied = _varied(_with(scenario, workers=count), "link_bytes_per_second", _GBITS, _GBIT)
        both.plot(_GBITS, [_fastest_compressed(at) for at in varied], label=f"{count:,} workers")
    both.axhline(1, color="black", linewidth=0.8)
    both.set_title("the fastest compressed way", fontsize=10)
    both.set_ylabel("times as fast as dense")
    both.legend(fontsize=8)
    for axis in (bandwidths, both):
        axis.set_xlabel("Gbit/s of a link")
    workers.set_xlabel("workers")
    for axis in (bandwidths, workers):
        axis.set_ylabel("ms per step")
        axis.axhline(1e3 * scenario.compute_seconds, color="grey", linestyle=":", linewidth=0.8)
    for axis in (bandwidths, workers, both):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
    figure.legend(handles=lines, loc="lower center", ncols=5, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    with written_whole(path) as aside:
        figure.savefig(aside, dpi=80)
    plt.close(figure)
    return True


def _draw_methods(axis, scenario, quantity, values, unit):
    """A line for each method: step time while one quantity of the cluster varies."""
    columns = list(zip(*map(forecasts, _varied(scenario, quantity, values, unit)), strict=True))
    return [
        axis.plot(
            values,
            [1e3 * f.time.step_seconds for f in column],
            label=column[0].method,
            linestyle="--" if column[0].hierarchical else "-",
        )[0]
        for column in columns
    ]


def _fastest_compressed(scenario):
    return max(f.speed_up for f in forecasts(scenario) if f.layout is not None)


def _varied(scenario, quantity, values, unit):
    return [_with(scenario, **{quantity: value * unit}) for value in values]


def _with(scenario, **changes):
    return dataclasses.replace(scenario, hardware=dataclasses.replace(scenario.hardware, **changes))
