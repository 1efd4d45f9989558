"""What is measured: models, arms, and the cells of the table. Imports no framework."""

import dataclasses
import itertools
import math


@dataclasses.dataclass(frozen=True)
class Model:
    """Dense ReLU layers on synthetic data.

    Attributes:
        widths: of the input and of each layer.
        batch: samples per worker.
        compute_seconds: a guess at one worker's step with nothing exchanged, to plan the time.
        compression_ratio: of this package's arms.
        rounds: turns that each arm gets.
    """

    widths: tuple[int, ...]
    batch: int
    compute_seconds: float
    compression_ratio: float = 100
    rounds: int = 3

    @property
    def parameters(self) -> int:
        return sum((n + 1) * m for n, m in itertools.pairwise(self.widths))


MODELS = {
    "5M": Model((784, 1600, 1600, 800, 10), 32, 0.02),
    "25M": Model((784, 4000, 4000, 1550, 10), 32, 0.1),
    # Many layers and a large batch: a long backward pass, in which to hide an exchange that takes
    # about as long at 100 Mbit/s. What is hidden is a small part of a step: more rounds show it.
    "deep": Model((784, *[640] * 24, 10), 128, 0.15, compression_ratio=50, rounds=8),
}

# Arms, by the framework whose worker runs them. Bytes that an element's gradient takes on the wire,
# roughly: for the plan's time only.
FLOOR, MWMS, OURS, TORCH_FLOOR = "TF compute only", "MWMS", "ours", "torch compute only"
SHARES, OWNERS, POWER_SGD = "ours, shares", "ours, owners", "ours, PowerSGD 2"
BFLOAT16, INT8 = "ours, bfloat16", "ours, int8"
SMALL_BUCKETS = "ours, 128 KiB"
ONE_BUCKET, MASKED = "ours, one bucket", "ours, one bucket, masked all-reduce"
FRAMEWORKS = {
    "tf": {
        FLOOR: 0.0,
        MWMS: 4.0,
        "MWMS fp16": 2.0,
        OURS: 0.05,
        BFLOAT16: 0.03,
        INT8: 0.02,
        "ours, chunk_keep 10": 0.06,
        SHARES: 0.05,
        OWNERS: 0.05,
        POWER_SGD: 0.03,
        "ours, 32 KiB": 0.05,
        "ours, 64 KiB": 0.05,
        SMALL_BUCKETS: 0.05,
        ONE_BUCKET: 0.05,
        MASKED: 0.06,
    },
    "torch": {
        TORCH_FLOOR: 0.0,
        "DDP": 4.0,
        "DDP fp16": 2.0,
        "DDP PowerSGD 1": 0.02,
        "DDP PowerSGD 2": 0.03,
        "DDP PowerSGD 4": 0.05,
    },
}
BYTES_PER_ELEMENT = FRAMEWORKS["tf"] | FRAMEWORKS["torch"]
# Of an element, that compression moves in memory: gradient and residual in, their sum out.
PASS_BYTES = 12
PEER_ARMS = [
    FLOOR,
    MWMS,
    "MWMS fp16",
    OURS,
    "ours, chunk_keep 10",
    *FRAMEWORKS["torch"],
]
METHOD_ARMS = [
    FLOOR,
    MWMS,
    OURS,
    BFLOAT16,
    SHARES,
    OWNERS,
    POWER_SGD,
    TORCH_FLOOR,
    "DDP PowerSGD 2",
]
WIRE_ARMS = [FLOOR, MWMS, OURS, BFLOAT16, INT8]
BUCKET_ARMS = ["ours, 32 KiB", "ours, 64 KiB", SMALL_BUCKETS, OURS, ONE_BUCKET]

# Dense, 25M would take 10 s a step and more at 100 Mbit/s.
_PEER_RATES = {"5M": ("100mbit", "1gbit", "unshaped"), "25M": ("1gbit", "unshaped")}
_RATE_BYTES = {"100mbit": 12.5e6, "1gbit": 125e6, "unshaped": 1e9}
_MOST_STEPS = 20


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number of the table: an arm on a model, at a number of workers and a rate."""

    model: str
    workers: int
    rate: str
    arm: str

    @property
    def key(self) -> str:
        arm = self.arm.replace(",", "").replace(" ", "_")
        return f"{self.model}-n{self.workers}-{self.rate}-{arm}"

    def expected_seconds(self) -> float:
        """A guess at one step, to plan by."""
        model, n = MODELS[self.model], self.workers
        wire = BYTES_PER_ELEMENT[self.arm] * model.parameters * 2 * (n - 1) / n
        cores = 2
        busy = max(1, n / cores)
        # On top of the link: copies and system calls, about a nanosecond a byte.
        return busy * (model.compute_seconds + 1e-9 * wire) + wire / _RATE_BYTES[self.rate]

    def steps(self, seconds: float) -> int:
        """Steps that take about `seconds`, at least one; whole cycles of leaders if more."""
        wanted = seconds / self.expected_seconds()
        if wanted < 1:
            return 1
        return self.workers * math.ceil(min(wanted, _MOST_STEPS) / self.workers)


def full_plan() -> list[Cell]:
    """The whole matrix, without repetition."""
    cells = [
        Cell(model, workers, rate, arm)
        for model, rates in _PEER_RATES.items()
        for workers in (2, 4)
        for rate in rates
        for arm in PEER_ARMS
    ]
    cells += [
        Cell(model, 2, rate, arm)
        for model in ("5M", "25M")
        for rate in ("100mbit", "1gbit")
        for arm in [FLOOR, *BUCKET_ARMS, MASKED]
    ]
    cells += [Cell("deep", 2, "100mbit", arm) for arm in (FLOOR, SMALL_BUCKETS, OURS, ONE_BUCKET)]
    cells += [Cell(model, 8, "unshaped", arm) for model in ("5M", "25M") for arm in (MWMS, OURS)]
    return list(dict.fromkeys(cells))


def methods_plan() -> list[Cell]:
    """The methods that train, beside each other."""
    cells = [
        Cell("5M", workers, rate, arm)
        for workers in (2, 4)
        for rate in _PEER_RATES["5M"]
        for arm in METHOD_ARMS
    ]
    cells += [Cell("25M", 2, "1gbit", arm) for arm in METHOD_ARMS]
    # A broadcast's tree is log2 n messages deep, a gather's ring passes n - 1.
    cells += [
        Cell("5M", workers, "1gbit", arm) for workers in (8, 16) for arm in (OURS, SHARES, OWNERS)
    ]
    return cells


def wires_plan() -> list[Cell]:
    """The dtypes of values on the wire, beside each other."""
    return [Cell("5M", 2, rate, arm) for rate in _PEER_RATES["5M"] for arm in WIRE_ARMS]


def quick_plan() -> list[Cell]:
    """A look at the main arms in a minute or two."""
    return [
        Cell("5M", 2, rate, arm) for rate in ("100mbit", "1gbit") for arm in (FLOOR, MWMS, OURS)
    ]
