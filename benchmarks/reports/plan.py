"""The performance model of `python -m tf_scalecom plan` against what benchmarks/network measured.

    python benchmarks/reports/plan.py    -> the tables of docs/plan.md, docs/pictures/plan*.png

Measured: docs/data/network.csv, which `benchmarks/network --docs` writes, and what `--methods` has
measured beside it. The compute term, the bandwidth of memory and that of the link are those of each
cell's own run. What a message and a byte cost the runtime is not in there: it follows from the two
unshaped cells "MWMS" and "ours" of each model and number of workers, and all others are predicted
with it. A second table has the paper's figures.
"""

import csv
import dataclasses
import itertools
import math
import pathlib
import sys

from tf_scalecom.forecast import Exchange, Hardware, Scenario, performance, plots
from tf_scalecom.forecast.load import layouts_of
from tf_scalecom.forecast.performance import step_time
from tf_scalecom.wire.layout import Layout, tensor_layout
from tf_scalecom.wire.low_rank import LowRankPlan
from tf_scalecom.wire.route import BUCKET_BYTES

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "models" / "image")]

from network.matrix import (  # noqa: E402
    BFLOAT16,
    MODELS,
    MWMS,
    ONE_BUCKET,
    OURS,
    OWNERS,
    PASS_BYTES,
    POWER_SGD,
)
from resnet import build_resnet  # noqa: E402

MEASURED = ROOT / "docs" / "data" / "network.csv"
METHODS = ROOT / "docs" / "data" / "network_methods.csv"
PAGE = ROOT / "docs" / "plan.md"
PICTURES = ROOT / "docs" / "pictures"
_BEGIN, _END = "<!-- {}: begin -->", "<!-- {}: end -->"
FLOAT16, KEEP_10 = "MWMS fp16", "ours, chunk_keep 10"
ARMS = {
    MEASURED: (MWMS, FLOAT16, OURS, KEEP_10, ONE_BUCKET),
    METHODS: (BFLOAT16, OWNERS, POWER_SGD),
}
# Of the values on the wire, where not float32.
VALUE_DTYPES = {BFLOAT16: "bfloat16", OWNERS: "bfloat16"}
CALIBRATING_RATE, CALIBRATING_ARMS = "unshaped", (MWMS, OURS)
# Of a model that has no unshaped cells, those of one with as many workers.
CALIBRATED_BY = {"deep": "5M"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of the network benchmark, and the prediction for it.

    Attributes:
        model, workers, rate, arm: as in benchmarks/network.
        measured_ms: median step.
        compute_ms: median step of as many workers with nothing exchanged.
        predicted_ms: by the model with the runtime's costs.
        speeds_only_ms: by the model without them.
        calibrates: whether those costs come from this cell.
    """

    model: str
    workers: int
    rate: str
    arm: str
    measured_ms: float
    compute_ms: float
    predicted_ms: float
    speeds_only_ms: float
    calibrates: bool

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What the runtime costs. On few cores both grow with the processes that share one."""

    message_seconds: float
    seconds_per_byte: float


def read() -> dict[tuple, dict]:
    """(model, workers, rate, arm) -> its row, numbers as float, of cells with a compute floor."""
    measured = {}
    for path, arms in ARMS.items():
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["arm"] in arms and row["floor_ms"]]
        for row in rows:
            key = (row.pop("model"), int(row.pop("workers")), row.pop("rate"), row.pop("arm"))
            measured[key] = {name: float(text) if text else None for name, text in row.items()}
    return measured


def cells(measured: dict[tuple, dict]) -> list[Cell]:
    """A prediction for each cell."""
    costs_of = runtimes(measured)
    predicted = []
    for (model, workers, rate, arm), row in measured.items():
        costs = costs_of[CALIBRATED_BY.get(model, model), workers]
        times = [
            1e3
            * step_time(
                exchange(model, workers, arm),
                hardware(measured, (model, workers, rate, arm), of_runtime),
                row["floor_ms"] / 1e3,
            ).step_seconds
            for of_runtime in (costs, Runtime(0.0, 0.0))
        ]
        calibrates = rate == CALIBRATING_RATE and arm in CALIBRATING_ARMS
        predicted.append(
            Cell(model, workers, rate, arm, row["ms"], row["floor_ms"], *times, calibrates)
        )
    return predicted


def runtimes(measured: dict[tuple, dict]) -> dict[tuple[str, int], Runtime]:
    """(model, workers) -> costs, where there are unshaped cells."""
    groups = dict.fromkeys(key[:2] for key in measured if key[2] == CALIBRATING_RATE)
    return {group: runtime(measured, *group) for group in groups}


def runtime(measured: dict[tuple, dict], model: str, workers: int) -> Runtime:
    """Solves two equations: what the unshaped steps took beyond what the speeds explain."""
    equations = []
    for arm in CALIBRATING_ARMS:
        key = (model, workers, CALIBRATING_RATE, arm)
        moved = exchange(model, workers, arm)
        alone = step_time(moved, hardware(measured, key, Runtime(0.0, 0.0)), 0.0).step_seconds
        rest = (measured[key]["ms"] - measured[key]["floor_ms"]) / 1e3 - alone
        equations.append((moved.messages, moved.path_bytes, rest))
    (m1, b1, t1), (m2, b2, t2) = equations
    message = (t2 * b1 - t1 * b2) / (m2 * b1 - m1 * b2)
    if message < 0:  # less than nothing left for messages: all of it is the bytes of the dense arm
        return Runtime(0.0, t1 / b1)
    return Runtime(message, (t1 - m1 * message) / b1)


def hardware(measured: dict[tuple, dict], key: tuple, costs: Runtime) -> Hardware:
    """The benchmark's network and memory, as its own run measured them."""
    model, workers, rate, _ = key
    row, ours = measured[key], measured[model, workers, rate, OURS]
    return Hardware(
        workers=workers,
        link_bytes_per_second=1e9 * row["payload_mb"] / row["wire_ms"],
        message_seconds=costs.message_seconds,
        memory_bytes_per_second=1e3 * PASS_BYTES * _compressed(model) / ours["kernel_ms"],
        host_seconds_per_byte=costs.seconds_per_byte,
    )


def exchange(model: str, workers: int, arm: str) -> Exchange:
    """What the arm moves."""
    layout = _layout(model, arm)
    if arm == MWMS:
        return performance.dense_exchange(layout, workers)
    if arm == FLOAT16:
        return performance.float16_exchange(layout, workers)
    bucket_bytes = 1 << 30 if arm == ONE_BUCKET else BUCKET_BYTES
    if arm == OWNERS:
        return performance.owners_exchange(layout, bucket_bytes, workers)
    if arm == POWER_SGD:
        plan = LowRankPlan(layout.without_compression().tensors, rank=2)
        return performance.low_rank_exchange(plan, bucket_bytes, workers)
    return performance.compressed_exchange(layout, bucket_bytes, workers, in_place=True)


def _compressed(model):
    layout = _layout(model, OURS)
    return sum(layout.tensors[i].elements for i in layout.compressed)


def _layout(model, arm):
    """The plan for the benchmark's dense layers, as its optimizer makes it."""
    ratio = MODELS[model].compression_ratio * (0.92 if arm == OWNERS else 1)
    keep = 10 if arm == KEEP_10 else 1
    shapes = [
        shape for n, m in itertools.pairwise(MODELS[model].widths) for shape in ((n, m), (m,))
    ]
    tensors = (tensor_layout("", shape, "float32", ratio, chunk_keep=keep) for shape in shapes)
    return Layout(tuple(tensors), value_dtype=VALUE_DTYPES.get(arm, "float32"))


# The paper's performance model: ResNet-50 at 96x, 32-bit indices, time of an exchange = bytes that
# a worker sends / bandwidth, whatever the way they take; no memory, no messages.
PAPER_ELEMENTS, PAPER_RATIO, PAPER_WORKERS = 25_557_032, 96, 128
# Speed-up at 100 and at 300 TFLOP/s per worker, by batch per worker.
PAPER_SPEED_UPS = {"small batch": (2.0, 4.1), "larger batch": (1.23, 1.75)}
PAPER_SHARE, PAPER_SHARE_COMPRESSED, PAPER_INDEX_SHARE = 0.56, 0.03, 0.005


@dataclasses.dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, and the model's."""

    what: str
    paper: float
    predicted: float


def paper_figures() -> list[PaperFigure]:
    """What follows from the paper's assumptions.

    The paper's bandwidth and compute times are not known here, only figures that follow from them:
    of each batch the speed-up at 300 TFLOP/s says what the exchange takes against compute, and the
    one at 100 TFLOP/s, where compute takes three times as long, is predicted; the dense share of
    communication at 128 workers says the compressed one.
    """
    dense, sparse = paper_exchanges(PAPER_WORKERS)
    figures = []
    for batch, (at_100, at_300) in PAPER_SPEED_UPS.items():
        bandwidth = (dense.path_bytes - at_300 * sparse.path_bytes) / (at_300 - 1)
        of = Hardware(PAPER_WORKERS, bandwidth, 0.0, math.inf)
        slow, fast = (step_time(moved, of, 3.0).step_seconds for moved in (dense, sparse))
        figures.append(PaperFigure(f"speed-up at 100 TFLOP/s, {batch}", at_100, slow / fast))
    for workers in (PAPER_WORKERS, 1_000, 10_000):
        figures.append(
            PaperFigure(
                f"share of communication at {workers:,} workers, compressed",
                PAPER_SHARE_COMPRESSED,
                communication_share(workers),
            )
        )
    indices = 4 * PAPER_ELEMENTS / PAPER_RATIO
    saved = dense.sent_bytes - sparse.sent_bytes
    figures.append(PaperFigure("indices / traffic saved", PAPER_INDEX_SHARE, indices / saved))
    return figures


def communication_share(workers: int) -> float:
    """Of a compressed step, where at 128 workers it is 56 % of a dense one."""
    dense, _ = paper_exchanges(PAPER_WORKERS)
    _, sparse = paper_exchanges(workers)
    bandwidth = dense.path_bytes * (1 - PAPER_SHARE) / PAPER_SHARE
    time = step_time(sparse, Hardware(workers, bandwidth, 0.0, math.inf), 1.0)
    return time.wire_seconds / time.step_seconds


def paper_exchanges(workers: int) -> tuple[Exchange, Exchange]:
    """Dense and compressed, as the paper counts: what is sent is what takes time."""
    tensor = tensor_layout("", (PAPER_ELEMENTS,), "float32", PAPER_RATIO, selection="exact")
    layout = Layout((tensor,))
    sparse = performance.compressed_exchange(layout, BUCKET_BYTES, workers)
    return (
        performance.dense_exchange(layout, workers),
        dataclasses.replace(sparse, path_bytes=sparse.sent_bytes),
    )


def large_hardware(message_seconds: float) -> Scenario:
    """ResNet-50, 32 images a replica at 40 % of 100 TFLOP/s; workers of 8 such replicas."""
    layouts = layouts_of(build_resnet(50, (224, 224, 3), 1000), [100.0], ["float32"])
    hardware = Hardware(
        workers=16,
        link_bytes_per_second=100e9 / 8,
        message_seconds=message_seconds,
        memory_bytes_per_second=2e12,
        replicas_per_worker=8,
        inside_bytes_per_second=2_400e9 / 8,
    )
    return Scenario(layouts, hardware, compute_seconds=20e-3, bucket_bytes=1 << 30)


def main():
    """Writes tables and pictures into the docs."""
    predicted = cells(read())
    into_page("measured", step_table(predicted))
    into_page("paper", paper_table(paper_figures()))
    for name, message_seconds in (("plan.png", 10e-6), ("plan_no_latency.png", 0.0)):
        if not plots.draw(large_hardware(message_seconds), PICTURES / name):
            sys.exit("Expected matplotlib to draw; received none: pip install matplotlib.")
    print(PAGE.relative_to(ROOT))


def step_table(predicted: list[Cell]) -> str:
    """Markdown: predicted against measured."""
    lines = [
        "| model | workers | rate | arm | compute | measured | predicted | | by speeds alone | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for c in predicted:
        error = "(calibrates)" if c.calibrates else f"{c.error:+.0%}"
        lines.append(
            f"| {c.model} | {c.workers} | {c.rate} | {c.arm} | {c.compute_ms:.1f} "
            f"| {c.measured_ms:.1f} | {c.predicted_ms:.1f} | {error} "
            f"| {c.speeds_only_ms:.1f} | {c.speeds_only_ms / c.measured_ms - 1:+.0%} |"
        )
    own = [c for c in predicted if not c.calibrates]
    near = sum(abs(c.error) <= 0.25 for c in own)
    alone = sum(abs(c.speeds_only_ms / c.measured_ms - 1) <= 0.25 for c in own)
    lines += ["", f"Within 25 %: {near} of {len(own)} predictions, {alone} by speeds alone."]
    measured = read()
    costs = ", ".join(
        f"{model} on {workers} workers {1e3 * of.message_seconds:.1f} ms and "
        f"{1e9 * of.seconds_per_byte:.1f} ns"
        for (model, workers), of in runtimes(measured).items()
    )
    return "\n".join([*lines, "", f"A message and a byte cost: {costs}."])


def paper_table(figures: list[PaperFigure]) -> str:
    """Markdown: the paper's figures and the model's."""
    lines = ["| | paper | model |", "|---|---|---|"]
    for f in figures:
        if f.what.startswith("speed-up"):
            lines.append(f"| {f.what} | {f.paper:g} | {f.predicted:.2f} |")
        else:
            lines.append(f"| {f.what} | {f.paper:.2g} | {f.predicted:.4f} |")
    return "\n".join(lines)


def into_page(name: str, text: str) -> None:
    """Puts a table between its two marks."""
    before, rest = PAGE.read_text().split(_BEGIN.format(name))
    _, after = rest.split(_END.format(name))
    PAGE.write_text(f"{before}{_BEGIN.format(name)}\n\n{text}\n\n{_END.format(name)}{after}")


if __name__ == "__main__":
    main()
