"""The worker's side of a measurement: obeys commands on standard input, answers on standard output.

A command is a line of JSON, and so is its answer:

    {"do": "build", "arm": ARM}              {...}, what the arm says of itself
    {"do": "steps", "arm": ARM, "steps": K}  {"seconds", "bytes", "packets"} of K steps
    {"do": "copy"}                           {"bytes_per_second"}

All workers get the same commands in the same order. Whatever else is printed goes to standard
error.
"""

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np

_COUNTERS = pathlib.Path("/sys/class/net/eth0/statistics")
# Enough to trace, and to be past the two steps that PowerSGD leaves dense.
_WARM_UP_STEPS = 4
_COPY_BYTES = 100_000_000
_COPY_SECONDS = 0.5


def serve(build: Callable[[str], tuple[Callable[[], object], dict]]) -> None:
    """Answers until standard input ends.

    Args:
        build: name of an arm -> its training step, and what to answer about it. The step must
            return when it is done.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    steps = {}
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "build":
            steps[command["arm"]], answer = build(command["arm"])
            for _ in range(_WARM_UP_STEPS):
                steps[command["arm"]]()
        elif command["do"] == "steps":
            answer = _measure(steps[command["arm"]], command["steps"])
        else:
            answer = {"bytes_per_second": _copy_bandwidth()}
        print(json.dumps(answer), file=answers, flush=True)


def _measure(step, count):
    step()  # not counted: with it the workers start together
    sent, packets = _sent("tx_bytes"), _sent("tx_packets")
    start = time.perf_counter()
    for _ in range(count):
        step()
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "bytes": _sent("tx_bytes") - sent,
        "packets": _sent("tx_packets") - packets,
    }


def _sent(counter):
    return int((_COUNTERS / counter).read_text())


def _copy_bandwidth():
    """Bytes read and written per second by a copy far larger than the caches."""
    source, target = np.ones(_COPY_BYTES, np.uint8), np.empty(_COPY_BYTES, np.uint8)
    np.copyto(target, source)  # maps the pages
    copies, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < _COPY_SECONDS:
        np.copyto(target, source)
        copies += 1
    return 2 * copies * _COPY_BYTES / seconds
