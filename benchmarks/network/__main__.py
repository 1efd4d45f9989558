"""Step time and bytes of gradient exchanges over rate-limited links, this package and its peers.

    sudo .venv/bin/python benchmarks/network            # all of it, about 25 minutes on 2 cores
    sudo .venv/bin/python benchmarks/network --quick    # a look, under 2 minutes
    sudo .venv/bin/python benchmarks/network --methods  # other methods than CLT-k, too
    sudo .venv/bin/python benchmarks/network --wires    # values in fewer bits, a minute

Each worker is a process in a network namespace of its own. All arms of a model at a number of
workers live at once and are measured in turn, round after round, so that the machine's other load
hits them alike. Cells measured are files of the results' folder and are not measured again: an
interrupted run goes on with the model and number of workers at which it was. Ends with a report in
Markdown, a table in CSV, and a plot.
"""

import argparse
import contextlib
import os
import pathlib
import platform
import random
import signal
import sys
import time

import report
import results as results_lib
from matrix import (
    FRAMEWORKS,
    METHOD_ARMS,
    MODELS,
    WIRE_ARMS,
    Cell,
    full_plan,
    methods_plan,
    quick_plan,
    wires_plan,
)
from namespaces import Network, only_run, require_root
from scheduling import take_short_turns
from workers import ROOT, WorkerError, Workers, set_up_torch

SECONDS_PER_ROUND = 1.0  # of one cell
QUICK_SECONDS_PER_ROUND = 0.3
_START_SECONDS = 15  # of a group of workers, on one core each
_BUILD_SECONDS = 4.0  # of an arm, on one core


def main() -> int:
    """Measures what is missing and writes the report; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="two arms, one model, 2 workers")
    size.add_argument(
        "--methods", action="store_true", help="the methods that train, beside each other"
    )
    size.add_argument(
        "--wires", action="store_true", help="the dtypes of values on the wire, beside each other"
    )
    parser.add_argument(
        "--results", type=pathlib.Path, help="default: runs/network[-quick | -methods | -wires]"
    )
    parser.add_argument(
        "--docs", action="store_true", help="put the tables and the plot into docs/network.md, too"
    )
    arguments = parser.parse_args()
    kind = next((f"-{k}" for k in ("quick", "methods", "wires") if getattr(arguments, k)), "")
    results = arguments.results or ROOT / "runs" / f"network{kind}"
    plan = {
        "": full_plan,
        "-quick": quick_plan,
        "-methods": methods_plan,
        "-wires": wires_plan,
    }[kind]()
    seconds = QUICK_SECONDS_PER_ROUND if arguments.quick else SECONDS_PER_ROUND
    try:
        require_root()
        take_short_turns()
        with only_run():
            measure(plan, results, seconds)
    except (PermissionError, RuntimeError, WorkerError) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.methods or arguments.wires:
        report.write_arms(plan, METHOD_ARMS if arguments.methods else WIRE_ARMS, results)
        return 0
    text = report.write(plan, results)
    if arguments.docs:
        report.into_docs(text, results)
    return 0


def measure(plan: list[Cell], results: pathlib.Path, seconds: float) -> None:
    """Measures the cells that have no result yet."""
    # So that an end by SIGTERM runs the finally clauses, too.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    todo = [cell for cell in plan if not results_lib.path_of(cell, results).exists()]
    groups = {}
    for cell in todo:
        groups.setdefault((cell.model, cell.workers), []).append(cell)
    say(
        f"{len(todo)} of {len(plan)} cells to measure, in about {expected(groups, seconds):.0f} "
        f"minutes on 2 quiet cores; results in {results}"
    )
    if any(cell.arm in FRAMEWORKS["torch"] for cell in todo):
        set_up_torch(say)
    for (model, workers), cells in groups.items():
        say(f"{model}, {workers} workers: {len(cells)} cells")
        measure_group(model, workers, cells, results, seconds)


def expected(groups, seconds) -> float:
    """Minutes that the groups will take."""
    total = 0.0
    for (model, workers), cells in groups.items():
        busy = max(1, workers / 2)
        arms = {cell.arm for cell in cells}
        total += busy * sum(
            _START_SECONDS for members in FRAMEWORKS.values() if arms & members.keys()
        )
        total += busy * _BUILD_SECONDS * len(arms)
        total += MODELS[model].rounds * sum(
            (cell.steps(seconds) + 1) * cell.expected_seconds() for cell in cells
        )
    return total / 60


def measure_group(model, count, cells, results, seconds):
    """Measures cells of one model at one number of workers, in turn."""
    with Network(count) as network, contextlib.ExitStack() as stack:
        conditions = {"machine": _machine(), "load_before": os.getloadavg()[0], "goodput": {}}
        rates = list(dict.fromkeys(cell.rate for cell in cells))
        for rate in rates:
            network.limit(rate)
            conditions["goodput"][rate] = network.goodput()
        network.limit("unshaped")
        of_framework = {}
        arms = dict.fromkeys(cell.arm for cell in cells)
        for framework, members in FRAMEWORKS.items():
            if any(arm in members for arm in arms):
                logs = results / "logs" / f"{model}-n{count}"
                workers = stack.enter_context(Workers(framework, network, model, logs))
                of_framework |= {arm: workers for arm in members}
        about = {}
        for arm in arms:
            (about[arm], *_) = of_framework[arm].ask(300 + 60 * count, do="build", arm=arm)
        rounds = {cell: [] for cell in cells}
        copies = []
        for number in range(MODELS[model].rounds):
            copies.append(_copy_bandwidth(next(iter(of_framework.values()))))
            for rate in rates:
                network.limit(rate)
                in_turn = [cell for cell in cells if cell.rate == rate]
                random.Random(number).shuffle(in_turn)
                for cell in in_turn:
                    rounds[cell].append(measure_round(cell, of_framework, seconds))
            say(f"  round {number + 1} of {MODELS[model].rounds}, load {os.getloadavg()[0]:.1f}")
        conditions["copy_bandwidth"] = max(copies)  # the best: it is for a limit
        for cell in cells:
            results_lib.save(
                cell, results, rounds=rounds[cell], about=about[cell.arm], conditions=conditions
            )


def measure_round(cell, of_framework, seconds):
    """One round of a cell: mean step time and bytes over the workers, and others' load."""
    steps = cell.steps(seconds)
    workers = set(of_framework.values())
    begin, others = time.monotonic(), _busy_seconds() - sum(w.cpu_seconds() for w in workers)
    limit = 60 + 20 * (steps + 1) * cell.expected_seconds()
    answers = of_framework[cell.arm].ask(limit, do="steps", arm=cell.arm, steps=steps)
    others = _busy_seconds() - sum(w.cpu_seconds() for w in workers) - others
    total = {key: sum(answer[key] for answer in answers) for key in answers[0]}
    return {
        "steps": steps,
        "step_seconds": total["seconds"] / steps / cell.workers,
        "bytes": total["bytes"] / steps / cell.workers,
        "packets": total["packets"] / steps / cell.workers,
        "others_cores": max(0.0, others) / (time.monotonic() - begin),
    }


def _machine():
    tcp = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return f"Linux {platform.release()}, {os.cpu_count()} cores, TCP {tcp}"


def _copy_bandwidth(workers):
    answers = workers.ask(60, do="copy")
    return sum(answer["bytes_per_second"] for answer in answers) / len(answers)


def _busy_seconds():
    """Processor time spent by all programs on this machine; interrupts are left out."""
    user, nice, system, *_ = map(int, pathlib.Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def say(line: str) -> None:
    """Prints a line of progress."""
    print(time.strftime("%H:%M:%S"), line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
