"""Means over seeds, and how much an arm loses to the dense one with the same seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# 95 % quantiles of Student's t, by degrees of freedom.
_T95 = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833}


class Estimate(NamedTuple):
    """A mean over seeds.

    Attributes:
        mean: the mean.
        standard_error: of the mean; NaN of one seed.
        upper: end of the one-sided 95 % confidence interval by Student's t; NaN of one seed.
    """

    mean: float
    standard_error: float
    upper: float


def estimate(values: Sequence[float]) -> Estimate:
    """Of 1 to 10 values, one a seed."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(mean, math.nan, math.nan)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, error, mean + _T95[len(values) - 1] * error)


def deficit(baseline: Mapping[int, float], arm: Mapping[int, float]) -> Estimate:
    """Of baseline - arm over the seeds that both have, {seed: figure}; > 0 where the arm loses.

    Raises:
        ValueError: they share no seed.
    """
    seeds = sorted(baseline.keys() & arm.keys())
    if not seeds:
        raise ValueError(
            f"Expected runs of both with the same seeds; received seeds {sorted(baseline)} and "
            f"{sorted(arm)}. Run one of the others."
        )
    return estimate([baseline[seed] - arm[seed] for seed in seeds])


def text(value: float, error: float, digits: int = 2) -> str:
    """A value with its standard error, if it has one."""
    shown = f"{value:.{digits}f}"
    return shown if math.isnan(error) else f"{shown} ± {error:.{digits}f}"
