"""The options of one simulated run: checked, stored with its results, and its name."""

import dataclasses
import hashlib
import math
import typing

from tf_scalecom import reduction
from tf_scalecom.reduction import MethodOptions, method_class
from tf_scalecom.wire.config import (
    WARMUP_RATIO,
    WARMUPS,
    CompressionConfig,
    check_warmup_steps,
)
from tf_scalecom.wire.dtypes import VALUE_DTYPES
from tf_scalecom.wire.selection import SELECTIONS
from tf_scalecom.wire.warmup import STAGES

METHODS = {name: method.words for name, method in reduction.METHODS.items()}
OPTIMIZERS = ("sgd", "adam")
DECAYS = ("cosine", "linear", "constant")
PLACEMENTS = ("after", "before")
PROGRESS = ("dropped", "kept")
CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")
MAX_LEARNERS = 256
# Characters of a run's name; a file name may have 255 bytes.
MAX_NAME = 200


def _option(default, help_text, choices=None):
    return dataclasses.field(default=default, metadata={"help": help_text, "choices": choices})


@dataclasses.dataclass(frozen=True)
class SimulationConfig:
    """One run. Two runs that differ in `method` alone share initial weights and data.

    Equal numbers are one option, whatever their type: 1 and 1.0 give the same run.
    """

    method: str = _option("clt_k", "how gradients become one", tuple(METHODS))
    learners: int = _option(4, "number of learners, 1 to 256")
    batch_size: int = _option(32, "examples per learner and step")
    steps: int = _option(1_000, "training steps")
    seed: int = _option(0, "seed of initial weights, data order and random choices")
    optimizer: str = _option("sgd", "inner optimizer", OPTIMIZERS)
    adam_beta_1: float = _option(0.9, "decay of Adam's mean of gradients; 0 is no momentum")
    adam_beta_2: float = _option(0.999, "decay of Adam's mean of squares")
    learning_rate: float = _option(0.1, "peak learning rate")
    lr_warmup: float = _option(0.1, "share of the steps over which it rises from 0")
    decay: str = _option("cosine", "how it then falls to 0, if at all", DECAYS)
    momentum: float = _option(0.0, "momentum; 0 is none")
    momentum_placement: str = _option(
        "after",
        "after: the inner SGD's, on the reduced gradient; before: each learner's own, before "
        "selection, cleared where it was sent (momentum correction of Deep Gradient Compression)",
        PLACEMENTS,
    )
    clipnorm: float | None = _option(None, "largest norm of a variable's gradient")
    global_clipnorm: float | None = _option(None, "largest norm of all gradients together")
    clipvalue: float | None = _option(None, "largest magnitude of an element of a gradient")
    compression_ratio: float | str = _option(100, 'elements / kept elements, or "auto"')
    selection: str = _option("chunk", "selection of the methods that select", tuple(SELECTIONS))
    chunk_keep: int = _option(1, "elements kept per chunk")
    value_dtype: str = _option("float32", "dtype of the values on the wire", VALUE_DTYPES)
    beta: float = _option(1.0, "low-pass filter of the residual; 1 is plain error feedback")
    final_beta: float | None = _option(None, "beta at the end, approached linearly after warm-up")
    warmup_steps: int = _option(0, "steps at the start in which more is sent, as --warmup says")
    warmup: str = _option(
        "dense",
        f"dense: all of it; ramp: the ratio grows from {WARMUP_RATIO}, geometrically in {STAGES} "
        "stages",
        WARMUPS,
    )
    rank: int = _option(1, "rank of power_sgd")
    picture: str = _option(
        "signs",
        "of mixed_top_k: what learners show each other of a chunk of a residual: "
        "all signs, those of what is large, or the largest element",
        reduction.PICTURES,
    )
    picture_every: int = _option(10, "steps from one picture to the next")
    step_limit: float | None = _option(
        None, "largest step of an element, in learning rates, of the methods of Adam's step"
    )
    delay: int = _option(0, "steps by which each sum of gradients comes late at the optimizer")
    local_steps: int = _option(
        1, "steps of each learner's own optimizer from one exchange to the next, of what they did"
    )
    local_progress: str = _option(
        "dropped",
        "what was not sent of that: dropped from the learner's weights, or kept",
        PROGRESS,
    )
    record_every: int = _option(50, "steps between rows of records.csv")
    evaluate_every: int = _option(500, "steps between evaluations")

    def __post_init__(self):
        for field in dataclasses.fields(self):
            choices = field.metadata["choices"]
            value = getattr(self, field.name)
            if choices and value not in choices:
                _refuse(field.name, value, f"one of {', '.join(choices)}")
            object.__setattr__(self, field.name, _normalised(field, value))
        for name in (
            "batch_size",
            "steps",
            "rank",
            "picture_every",
            "record_every",
            "evaluate_every",
        ):
            self._check(name, getattr(self, name) >= 1, "an integer >= 1")
        self._check("learners", 1 <= self.learners <= MAX_LEARNERS, f"1 to {MAX_LEARNERS}")
        self._check("step_limit", self.step_limit is None or self.step_limit > 0, "a number > 0")
        self._check("local_steps", self.local_steps >= 1, "an integer >= 1")
        for name in ("steps", "record_every", "evaluate_every") if self.local_steps > 1 else ():
            is_whole = getattr(self, name) % self.local_steps == 0
            self._check(name, is_whole, f"a multiple of local_steps, {self.local_steps}")
        self._check("delay", 0 <= self.delay < self.steps, "an integer from 0, below steps")
        self._check("seed", 0 <= self.seed < 2**32, "an integer from 0 to 2**32 - 1")
        self._check("learning_rate", 0 < self.learning_rate < math.inf, "a number > 0")
        self._check("lr_warmup", 0 <= self.lr_warmup < 1, "a share in [0, 1)")
        self._check("momentum", 0 <= self.momentum < 1, "a number in [0, 1)")
        self._check("adam_beta_1", 0 <= self.adam_beta_1 < 1, "a number in [0, 1)")
        self._check("adam_beta_2", 0 < self.adam_beta_2 < 1, "a number in (0, 1)")
        limits = [name for name in CLIPPING if getattr(self, name) is not None]
        for name in limits:
            self._check(name, getattr(self, name) > 0, "a number > 0")
            self._check(name, len(limits) == 1, f"one of {', '.join(CLIPPING)} at most")
        check_warmup_steps(self.warmup_steps)
        self.build_method()
        if self.final_beta is not None:
            self._check("final_beta", 0 < self.final_beta <= 1, "a number in (0, 1]")
        is_before = self.momentum_placement == "before"
        if self.momentum and not is_before and self.optimizer != "sgd":
            _refuse("momentum", self.momentum, f"0 with {self.optimizer}, which has its own")
        if self.momentum and is_before and not method_class(self.method).elementwise:
            nothing = f"after with {self.method}, which selects nothing"
            _refuse("momentum_placement", "before", nothing)
        if self.local_steps > 1 and self.momentum and is_before:
            _refuse("momentum_placement", "before", "after with local_steps, which have their own")
        if self.warmup == "ramp" and not method_class(self.method).has_ramp:
            _refuse("warmup", "ramp", f"dense with {self.method}, which has no ratio")

    def _check(self, name, is_valid, expected):
        if not is_valid:
            _refuse(name, getattr(self, name), expected)

    def compression(self, selection: str | None = None) -> CompressionConfig:
        """What of the arguments of `ScaleComOptimizer` it has, with this or another selection."""
        return CompressionConfig(
            compression_ratio=self.compression_ratio,
            beta=self.beta,
            selection=selection or self.selection,
            chunk_keep=self.chunk_keep,
            value_dtype=self.value_dtype,
        )

    def build_method(self):
        """The method of reduction, a `reduction.method.Method`."""
        options = MethodOptions(
            self.compression(),
            self.rank,
            self.seed,
            self.picture,
            self.picture_every,
            self.adam_beta_2,
            self.step_limit,
        )
        return method_class(self.method).from_options(options)

    @property
    def name(self) -> str:
        """Method, whatever else is not the default, and the seed: unique, and a file name.

        A long one ends in a digest of itself in place of what is too much, and the seed.
        """
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if field.name not in ("method", "seed") and getattr(self, field.name) != field.default
        ]
        seed = f"seed={self.seed}"
        name = "-".join([self.method, *changed, seed])
        if len(name) <= MAX_NAME:
            return name
        end = f"-{hashlib.sha256(name.encode()).hexdigest()[:16]}-{seed}"
        return name[: MAX_NAME - len(end)] + end


def _normalised(field, value):
    """The value as its field's type; a whole number as an integer where the default is one."""
    kinds = value_types(field.name)
    if float in kinds and isinstance(value, (int, float)):
        is_whole = isinstance(field.default, int) and float(value).is_integer()
        return int(value) if is_whole else float(value)
    if not isinstance(value, kinds):
        _refuse(field.name, value, "an integer" if int in kinds else "a number")
    return value


def value_types(name: str) -> tuple[type, ...]:
    """The types that an option's values may have."""
    annotation = typing.get_type_hints(SimulationConfig)[name]
    return typing.get_args(annotation) or (annotation,)


def _refuse(name, value, expected):
    raise ValueError(
        f"`{name}` of a simulation: expected {expected}; received {value!r}. Correct the option."
    )
