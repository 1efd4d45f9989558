"""What the forecasts mean, in plain sentences."""

import dataclasses
import math

from tf_scalecom.forecast.ways import Scenario, forecasts

# Two step times closer than this are alike: the predictions are no better.
_ALIKE = 1.05
# More than any model sends: all gradients in one bucket.
_ONE_BUCKET = 1 << 30


def advice(scenario: Scenario) -> list[str]:
    """What the forecasts mean, in sentences."""
    if scenario.hardware.workers * scenario.hardware.replicas_per_worker == 1:
        return ["Compression will not help you: one replica exchanges nothing."]
    dense, half, *others = forecasts(scenario)
    compressed = [forecast for forecast in others if forecast.layout]
    best = max(compressed, key=_speed_up)
    if best.speed_up < _ALIKE:
        return [_no_help(dense, best), *_one_bucket(scenario, best)]
    # Of those that help, as fast as the best, the one that drops least.
    enough = max(_ALIKE, best.speed_up / _ALIKE)
    chosen = max(
        (f for f in compressed if f.speed_up >= enough),
        key=lambda f: (f.exchange.sent_bytes, f.speed_up),
    )
    said = [
        f"Use {chosen.method}: {chosen.speed_up:.2g} times as fast as dense, "
        f"{_milliseconds(chosen)} instead of {_milliseconds(dense)} a step."
    ]
    if best.method != chosen.method:
        said.append(f"The fastest, {best.method}, gains less than 5 % on it.")
    if half.speed_up * _ALIKE >= best.speed_up:
        said.append(
            "Casting gradients to float16, if your strategy can, does as much and drops nothing."
        )
    said.append(_break_even(chosen))
    said += _one_bucket(scenario, best)
    said += _owners(chosen, others)
    return said


def _owners(chosen, others):
    """What it would cost to have owners choose, at the same ratio."""
    names = {f"{chosen.method}, owners", f"{chosen.method} bfloat16, owners"}
    return [
        f"With a better choice of what is sent, methods.OwnersTopK, a step takes "
        f"{_milliseconds(forecast)} ({forecast.method})."
        for forecast in others
        if forecast.method in names
    ]


def _no_help(dense, best):
    exchange_seconds = dense.time.step_seconds - dense.time.compute_seconds
    share = exchange_seconds / dense.time.step_seconds
    said = (
        f"Compression will not help you: dense gradients take {1e3 * exchange_seconds:.3g} ms of "
        f"a step of {_milliseconds(dense)} ({share:.0%}), and with {best.method}, the fastest "
        f"compressed way, a step takes {_milliseconds(best)}."
    )
    return f"{said} {_break_even(best)}" if best.break_even_bytes_per_second else said


def _break_even(forecast):
    bandwidth = forecast.break_even_bytes_per_second
    if math.isinf(bandwidth):
        return (
            "It is faster than dense at any bandwidth of the links: it also saves what the runtime "
            "spends on a byte (--host-ns)."
        )
    return (
        f"On links of less than {gbits(bandwidth)} Gbit/s it is faster than dense, on others "
        "slower."
    )


def gbits(bytes_per_second: float) -> str:
    """In Gbit/s, to three digits."""
    number = 8e-9 * bytes_per_second
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _one_bucket(scenario, best):
    """Whether fewer messages would help: each bucket waits for its own."""
    in_one = forecasts(dataclasses.replace(scenario, bucket_bytes=_ONE_BUCKET))[2:]
    better = max((forecast for forecast in in_one if forecast.layout), key=_speed_up)
    if better.speed_up < _ALIKE * max(best.speed_up, 1.0):
        return []
    return [
        f"With all gradients in one bucket, by CommunicationOptions(bytes_per_pack={_ONE_BUCKET}), "
        f"a step takes {_milliseconds(better)} ({better.method}): buckets wait for messages."
    ]


def _speed_up(forecast):
    return forecast.speed_up


def _milliseconds(forecast):
    return f"{1e3 * forecast.time.step_seconds:.3g} ms"
