"""The flags that all train.py share, and kinds of flags: each is checked as it is parsed."""

import math
import os
import re

from absl import flags
from package_files import DATA_FOLDER

from tf_scalecom.wire.config import WARMUPS, CompressionConfig, check_warmup_steps
from tf_scalecom.wire.dtypes import VALUE_DTYPES

flags.disclaim_key_flags()  # a flag is the train.py's that has it defined: --help lists it


def define_flags(**defaults) -> None:
    """Defines the flags that all tasks share.

    Args:
        **defaults: by flag name, where a task's default differs from the one here.
    """

    def define(kind, name, default, meaning, **limits):
        kind(name, defaults.pop(name, default), meaning, **limits)

    define(
        _define_compression_ratio,
        "compression_ratio",
        None,
        'Gradient elements per element sent, or "auto" for the per-layer rule. Without it the '
        "inner optimizer runs alone: dense.",
    )
    define(flags.DEFINE_float, "beta", 1.0, "Low-pass filter of the residual; 1 is plain feedback.")
    define(
        flags.DEFINE_integer, "chunk_keep", 1, "Elements kept per chunk; 1 is the paper's choice."
    )
    define(_define_value_dtype, "value_dtype", "float32", "Dtype of the values that are sent.")
    define(_define_method, "method", "CltK", "Who chooses what is sent: see tf_scalecom.methods.")
    define(flags.DEFINE_integer, "warmup_steps", 0, "Steps at the start in which more is sent.")
    define(_define_warmup, "warmup", "dense", "What they send: everything, or a share that falls.")
    flags.register_multi_flags_validator(
        ["compression_ratio", "beta", "chunk_keep", "warmup_steps"], _check_compression
    )
    define(
        define_positive,
        "learning_rate",
        0.1,
        "Peak learning rate, at a global batch of --base_batch if that is given.",
    )
    define(
        define_count,
        "base_batch",
        None,
        "Global batch that --learning_rate is meant for. At another one the rate is scaled: in "
        "proportion for SGD, by the square root for Adam.",
    )
    define(define_count, "batch_per_worker", 32, "Examples (wmt14: tokens) per worker.")
    define(define_count, "epochs", 5, "Epochs; each ends with an evaluation.")
    define(define_count, "steps_per_epoch", 750, "Training steps per epoch.")
    define(
        flags.DEFINE_integer,
        "seed",
        0,
        "Seed of the weights and of the order of the data.",
        lower_bound=0,
        upper_bound=2**32 - 1,  # NumPy's limit
    )
    define(
        flags.DEFINE_integer,
        "intra_op_threads",
        1,
        "Threads of one operation; 0: all cores.",
        lower_bound=0,
    )
    define(flags.DEFINE_string, "data_dir", str(DATA_FOLDER), "Where data sets are.")
    define(flags.DEFINE_string, "result", None, "File for the chief's measurements, as JSON.")
    flags.register_validator(
        "result",
        lambda path: (
            path is None
            or (os.path.isdir(os.path.dirname(os.path.abspath(path))) and not os.path.isdir(path))
        ),
        "expected a file, there or to be, in a folder that is there",
    )
    if defaults:
        raise ValueError(
            f"Expected defaults of shared flags; received {sorted(defaults)}. Define a flag of "
            "one task in its train.py."
        )


def define_sgd_flags() -> None:
    """Defines the flags of SGD and of its schedule, for the tasks that train with it."""
    define_share("momentum", 0.0, "Momentum of SGD.")
    define_share(
        "weight_decay",
        0.0,
        "Each step takes this share of learning rate times weight, beside the gradient: it is "
        "neither sent nor multiplied by momentum.",
    )
    define_share("ramp", 0.08, "Share of the steps over which the rate rises from 0.")
    flags.DEFINE_list(
        "decay_epochs", [], "Epochs after which the rate falls; without any, along a cosine to 0."
    )
    flags.register_validator(
        "decay_epochs",
        lambda epochs: all(re.fullmatch("0*[1-9][0-9]{0,8}", epoch) for epoch in epochs),
        "expected whole numbers above 0 with commas between them, such as 30,60,80",
    )
    define_positive("decay_factor", 0.1, "What it is multiplied by after each --decay_epochs.")


def define_count(name: str, default: int | None, meaning: str) -> None:
    """Defines a flag that takes a whole number, 1 or more."""
    flags.DEFINE_integer(name, default, meaning, lower_bound=1)


def define_share(name: str, default: float, meaning: str) -> None:
    """Defines a flag that takes a number in [0, 1)."""
    flags.DEFINE_float(name, default, meaning)
    # Not by bounds: absl's include their ends, and NaN passes them.
    flags.register_validator(
        name, lambda value: 0 <= value < 1, "expected a number from 0 to less than 1"
    )


def define_positive(name: str, default: float, meaning: str) -> None:
    """Defines a flag that takes a finite number above 0."""
    flags.DEFINE_float(name, default, meaning)
    flags.register_validator(
        name, lambda value: 0 < value < math.inf, "expected a finite number above 0"
    )


class _CompressionRatioParser(flags.ArgumentParser):
    """Gives a float, or "auto"."""

    syntactic_help = 'a number >= 1 or "auto"'

    def parse(self, argument):
        if argument == "auto":
            return argument
        try:
            return float(argument)
        except ValueError:
            raise ValueError(
                f"expected {self.syntactic_help}; leave it out to train dense"
            ) from None


def _define_compression_ratio(name, default, meaning):
    flags.DEFINE(_CompressionRatioParser(), name, default, meaning)


def _define_warmup(name, default, meaning):
    flags.DEFINE_enum(name, default, list(WARMUPS), meaning)


def _define_value_dtype(name, default, meaning):
    flags.DEFINE_enum(name, default, list(VALUE_DTYPES), meaning)


def _define_method(name, default, meaning):
    flags.DEFINE_enum(name, default, ["CltK", "SharesTopK", "OwnersTopK"], meaning)


def _check_compression(values):
    """Has the package check its arguments, by flag name; those of a dense run, too."""
    ratio = 1 if values["compression_ratio"] is None else values["compression_ratio"]
    try:
        CompressionConfig(
            compression_ratio=ratio, beta=values["beta"], chunk_keep=values["chunk_keep"]
        )
        check_warmup_steps(values["warmup_steps"])
    except ValueError as error:
        raise flags.ValidationError(str(error)) from error
    return True
