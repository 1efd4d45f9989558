"""The report of a matrix of cells: Markdown, CSV and a plot."""

import csv
import dataclasses
import pathlib
import statistics
from collections.abc import Sequence

import results as results_lib
from matrix import (
    BUCKET_ARMS,
    FLOOR,
    MASKED,
    MWMS,
    ONE_BUCKET,
    OURS,
    PEER_ARMS,
    SMALL_BUCKETS,
    Cell,
)
from results import Row

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "network.md"
PICTURE = ROOT / "docs" / "pictures" / "network.png"
TABLE = ROOT / "docs" / "data" / "network.csv"
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write(plan: Sequence[Cell], results: pathlib.Path) -> str:
    """Writes report.md, cells.csv and step_time.png; returns the report."""
    measured = results_lib.load(plan, results)
    rows = results_lib.rows(measured)
    write_table(rows, results)
    text = markdown(rows, measured)
    (results / "report.md").write_text(text)
    print(text)
    draw(rows, results / "step_time.png")
    return text


def write_arms(plan: Sequence[Cell], arms: Sequence[str], results: pathlib.Path) -> str:
    """As `write`, times and bytes alone, of some arms."""
    rows = results_lib.rows(results_lib.load(plan, results))
    write_table(rows, results)
    sections = {
        "Step time, ms: median (least to most)": _spread,
        "MB that a worker sends in a step, without headers": lambda r: f"{r.payload_mb:.3f}",
    }
    text = "\n\n".join(
        f"{title}:\n\n{_by_arm(rows, cell, arms, OURS)}" for title, cell in sections.items()
    )
    (results / "report.md").write_text(text)
    print(text)
    return text


def write_table(rows: Sequence[Row], results: pathlib.Path) -> None:
    """Writes cells.csv."""
    with (results / "cells.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([field.name for field in dataclasses.fields(Row)])
        for row in rows:
            values = dataclasses.astuple(row)
            table.writerow([f"{v:.4g}" if isinstance(v, float) else v for v in values])


def into_docs(text: str, results: pathlib.Path) -> None:
    """Puts a report, its plot and its table into the docs."""
    page = PAGE.read_text()
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n\n{text}\n{_END}{after}")
    PICTURE.write_bytes((results / "step_time.png").read_bytes())
    TABLE.write_bytes((results / "cells.csv").read_bytes())


def markdown(rows: Sequence[Row], measured: dict[Cell, dict]) -> str:
    """All tables of which there are rows."""
    sections = [
        ("Step time, ms: median (least to most)", _step_times(rows)),
        ("Against TensorFlow's own strategy: times as fast", _speed_ups(rows)),
        ("MB that a worker sends in a step, without headers", _traffic(rows)),
        ("Bytes against the formula", _formula(rows)),
        ("Step time against its limit, ms", _limits(rows)),
        ("Size of the buckets, ms", _buckets(rows)),
        ("Broadcast of the offsets, against an all-reduce with zeros", _masked(rows)),
        ("Hiding behind the backward pass", _overlap(rows)),
        ("Conditions", _conditions(rows, measured)),
    ]
    return "\n\n".join(f"### {title}\n\n{table}" for title, table in sections if table) + "\n"


def _step_times(rows):
    return _by_arm(
        [r for r in rows if r.workers < 8 and r.model != "deep"],
        _spread,
    )


def _speed_ups(rows):
    shown = [r for r in rows if r.of_mwms and "compute" not in r.arm and r.workers < 8]
    return _by_arm(shown, lambda r: f"{1 / r.of_mwms:.2f}")


def _by_arm(rows, text, shown=PEER_ARMS, everywhere=MWMS):
    """Arms down, cells across, one table a model; `everywhere` is the arm that all cells have."""
    tables = []
    for model in dict.fromkeys(r.model for r in rows):
        of_model = [r for r in rows if r.model == model]
        columns = list(dict.fromkeys((r.workers, r.rate) for r in of_model if r.arm == everywhere))
        cells = {(r.arm, (r.workers, r.rate)): text(r) for r in of_model}
        arms = [arm for arm in shown if any((arm, column) in cells for column in columns)]
        tables.append(
            _table(
                [model, *(f"{workers} workers, {rate}" for workers, rate in columns)],
                [[arm, *(cells.get((arm, column), "") for column in columns)] for arm in arms],
            )
        )
    return "\n\n".join(tables)


def _traffic(rows):
    """Bytes do not depend on the rate: the fastest one measured is shown."""
    shown = {
        (r.arm, (r.model, r.workers)): r
        for r in rows
        if "compute" not in r.arm and r.arm in PEER_ARMS and r.model != "deep"
    }
    columns = sorted({column for _, column in shown}, key=lambda c: (int(c[0][:-1]), c[1]))
    body = [
        [arm, *(f"{shown[arm, c].payload_mb:.3f}" if (arm, c) in shown else "" for c in columns)]
        for arm in PEER_ARMS
        if any((arm, column) in shown for column in columns)
    ]
    return _table(["", *(f"{model}, {workers} workers" for model, workers in columns)], body)


def _formula(rows):
    fastest = {(r.model, r.workers, r.arm): r for r in rows if r.formula_mb and r.model != "deep"}
    body = [
        [
            r.model,
            r.workers,
            r.arm,
            f"{r.formula_mb:.3f}",
            f"{r.payload_mb:.3f}",
            f"{r.payload_mb / r.formula_mb - 1:+.1%}",
            f"{r.mb:.3f}",
        ]
        for r in fastest.values()
        if r.arm in PEER_ARMS
    ]
    return _table(["model", "workers", "arm", "formula", "counted", "", "with headers"], body)


def _limits(rows):
    body = [
        [
            r.model,
            r.workers,
            r.rate,
            r.arm,
            _ms(r.floor_ms),
            _ms(r.wire_ms),
            _ms(r.limit_ms),
            _ms(r.ms),
            f"{r.of_limit:.2f}",
        ]
        for r in rows
        if r.arm in (MWMS, OURS) and r.limit_ms
    ]
    return _table(
        [
            "model",
            "workers",
            "rate",
            "arm",
            "compute",
            "wire",
            "limit",
            "measured",
            "/ limit",
        ],
        body,
    )


def _buckets(rows):
    shown = {(r.arm, (r.model, r.rate)): r for r in rows if r.workers == 2}
    columns = [c for a, c in shown if a == ONE_BUCKET and c[0] != "deep"]
    body = (
        [
            [
                arm.replace(OURS, "default") if arm == OURS else arm.removeprefix("ours, "),
                *(_spread(shown[arm, column]) for column in columns),
            ]
            for arm in BUCKET_ARMS
        ]
        if columns
        else []
    )
    return _table(["2 workers", *(f"{model}, {rate}" for model, rate in columns)], body)


def _masked(rows):
    cells = {(r.model, r.rate, r.arm): r for r in rows if r.workers == 2}
    body = []
    for (model, rate, arm), masked in cells.items():
        if arm == MASKED:
            real = cells[model, rate, ONE_BUCKET]
            body.append(
                [
                    model,
                    rate,
                    _ms(real.ms),
                    _ms(masked.ms),
                    f"{real.payload_mb:.3f}",
                    f"{masked.payload_mb:.3f}",
                ]
            )
    return _table(
        [
            "2 workers, one bucket",
            "rate",
            "broadcast, ms",
            "all-reduce, ms",
            "broadcast, MB",
            "all-reduce, MB",
        ],
        body,
    )


def _overlap(rows):
    arms = {r.arm: r for r in rows if r.model == "deep"}
    if not arms:
        return ""
    floor, one = arms[FLOOR], arms[ONE_BUCKET]
    exchange = one.ms - floor.ms
    shown = {
        FLOOR: "nothing exchanged",
        ONE_BUCKET: "one bucket, after the backward pass",
        OURS: "buckets as gradients become ready, of the default 512 KiB",
        SMALL_BUCKETS: "of 128 KiB",
    }
    body = [
        [
            text,
            _spread(arms[arm]),
            _ms(arms[arm].ms - floor.ms),
            f"{(one.ms - arms[arm].ms) / exchange:.0%}" if arm in (OURS, SMALL_BUCKETS) else "",
        ]
        for arm, text in shown.items()
    ]
    heads = [f"deep, {one.workers} workers, {one.rate}", "step, ms", "of it exchange", "hidden"]
    return _table(heads, body)


def _conditions(rows, measured):
    groups = {}
    for cell, row in zip(measured, rows, strict=True):
        groups.setdefault((cell.model, cell.workers), []).append((measured[cell], row))
    body = []
    for (model, workers), members in groups.items():
        conditions = [m["conditions"] for m, _ in members]
        goodput = {rate: bps for c in conditions for rate, bps in c["goodput"].items()}
        others = [row.others_cores for _, row in members]
        body.append(
            [
                model,
                workers,
                f"{conditions[0]['load_before']:.1f}",
                f"{statistics.median(others):.1f} ({min(others):.1f} to {max(others):.1f})",
                f"{conditions[0]['copy_bandwidth'] / 1e9:.1f}",
                ", ".join(f"{rate} {8e-6 * bps:,.0f}" for rate, bps in goodput.items()),
            ]
        )
    machine = next(iter(measured.values()))["conditions"]["machine"]
    frameworks = dict.fromkeys(m["about"]["framework"] for m in measured.values())
    return (
        _table(
            [
                "model",
                "workers",
                "load average before",
                "cores busy with other programs",
                "copy, GB/s and worker",
                "one TCP flow, Mbit/s",
            ],
            body,
        )
        + f"\n\n{machine}; {', '.join(frameworks)}."
    )


def _table(header, body):
    if not body:
        return ""
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _ms(milliseconds):
    return f"{milliseconds:.0f}" if milliseconds >= 99.5 else f"{milliseconds:.1f}"


def _spread(row):
    return f"{_ms(row.ms)} ({_ms(row.ms_min)} to {_ms(row.ms_max)})"


def draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Step time of each arm, one panel for each model and number of workers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [r for r in rows if r.arm in PEER_ARMS and "compute" not in r.arm and r.workers < 8]
    panels = list(dict.fromkeys((r.model, r.workers) for r in shown if r.model != "deep"))
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(1 + 4 * len(panels), 4.5), sharey=True, squeeze=False
    )
    arms = [arm for arm in PEER_ARMS if any(r.arm == arm for r in shown)]
    colours = dict(zip(arms, pyplot.get_cmap("tab20").colors, strict=False))
    for (model, workers), ax in zip(panels, axes[0], strict=True):
        panel = [r for r in shown if (r.model, r.workers) == (model, workers)]
        rates = [
            rate
            for rate in ("100mbit", "1gbit", "unshaped")
            if any((r.rate, r.arm) == (rate, MWMS) for r in panel)
        ]
        width = 0.85 / len(arms)
        for row in panel:
            if row.rate in rates:
                at = rates.index(row.rate) + (arms.index(row.arm) - len(arms) / 2 + 0.5) * width
                ax.bar(at, row.ms, width, color=colours[row.arm])
                if row.limit_ms:
                    ax.plot([at - width / 2, at + width / 2], [row.limit_ms] * 2, "k-", lw=1)
        ax.set_xticks(range(len(rates)), rates)
        ax.set_title(f"{model} parameters, {workers} workers")
        ax.set_yscale("log")
        ax.grid(axis="y", alpha=0.3)
    axes[0][0].set_ylabel("ms per step (line: limit)")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colours[arm]) for arm in arms]
    figure.legend(handles, arms, loc="lower center", ncols=5, frameon=False)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
