"""What the forecasts mean, in plain sentences."""

import dataclasses
import math

from tf_scalecom.plan.forecast import Scenario, forecasts

# Two step times closer than this are alike: the model is not better.
_ALIKE = 1.05
_MUCH_LATENCY = 0.25
# More than any model sends: all gradients in one bucket.
_ONE_BUCKET = 1 << 30


def advice(scenario: Scenario) -> list[str]:
    """What the forecasts mean, in sentences."""
    if scenario.cluster.replicas == 1:
        return ["Compression will not help you: one replica exchanges nothing."]
    dense, half, *compressed = forecasts(scenario)
    best = max(compressed, key=lambda f: f.speed_up)
    # Of those as fast as the best, the one that drops least.
    chosen = max(
        (f for f in compressed if f.speed_up * _ALIKE >= best.speed_up),
        key=lambda f: (f.exchange.sent_bytes, f.speed_up),
    )
    if best.speed_up < _ALIKE:
        return [_no_help(dense, best)]
    said = [
        f"Use {chosen.method}: {chosen.speed_up:.2g} times as fast as dense, "
        f"{_milliseconds(chosen)} instead of {_milliseconds(dense)} a step."
    ]
    if best.method != chosen.method:
        said.append(f"The fastest, {best.method}, gains less than 5 % on it.")
    if half.speed_up * _ALIKE >= best.speed_up:
        said.append(
            "Casting gradients to float16, if your strategy can, does as much and drops none."
        )
    said.append(_break_even(chosen))
    said += _latency(scenario, chosen)
    said.append("What a ratio costs in accuracy is not predicted here.")
    return said


def _no_help(dense, best):
    exchange_seconds = dense.time.step_seconds - dense.time.compute_seconds
    share = exchange_seconds / dense.time.step_seconds
    said = (
        f"Compression will not help you: dense gradients take {1e3 * exchange_seconds:.3g} ms of "
        f"a step of {_milliseconds(dense)} ({share:.0%}), and with {best.method}, the fastest, a "
        f"step takes {_milliseconds(best)}."
    )
    if best.break_even_bytes_per_second:
        said += f" {_break_even(best)}"
    return said


def _break_even(forecast):
    bandwidth = forecast.break_even_bytes_per_second
    if math.isinf(bandwidth):
        return "It is faster than dense at any bandwidth of the links."
    return (
        f"On links of less than {8e-9 * bandwidth:.3g} Gbit/s it is faster than dense, on others "
        "slower."
    )


def _latency(scenario, chosen):
    share = chosen.time.latency_seconds / chosen.time.step_seconds
    if share < _MUCH_LATENCY:
        return []
    said = [f"Waiting for messages takes {share:.0%} of its step."]
    one_bucket = dataclasses.replace(scenario, bucket_bytes=_ONE_BUCKET)
    better = next(f for f in forecasts(one_bucket) if f.method == chosen.method)
    if better.speed_up > _ALIKE * chosen.speed_up:
        said.append(
            f"Exchange all gradients in one bucket, by CommunicationOptions(bytes_per_pack="
            f"{_ONE_BUCKET}): a step of {_milliseconds(better)}."
        )
    return said


def _milliseconds(forecast):
    return f"{1e3 * forecast.time.step_seconds:.3g} ms"
