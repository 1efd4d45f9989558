"""The user's compression arguments: checked, and turned into a `Layout` for a list of variables."""

import dataclasses
import math
import numbers
import re
from collections.abc import Mapping, Sequence

from tf_scalecom.wire.dtypes import VALUE_DTYPES
from tf_scalecom.wire.layout import Layout, tensor_layout, unique_paths
from tf_scalecom.wire.selection import SELECTIONS

WARMUPS = ("dense", "ramp")
# Where a ramp's ratios begin. Deep Gradient Compression (Lin et al., 2018) begins there, too.
WARMUP_RATIO = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressionConfig:
    """Arguments of `ScaleComOptimizer` that say what to send; see there for their meaning.

    Raises:
        ValueError: one is out of its range.
    """

    compression_ratio: float | str | Mapping[str, float] = 100
    beta: float = 1.0
    exclude: str | Sequence[str] = ()
    selection: str = "chunk"
    chunk_keep: int = 1
    value_dtype: str = "float32"

    def __post_init__(self):
        checked = {
            "compression_ratio": _check_ratio(self.compression_ratio),
            # A smaller one would be 0 in float32.
            "beta": _check_number(
                "beta", self.beta, "a number in (0, 1]", lambda b: 2**-126 <= b <= 1
            ),
            "exclude": tuple(_check_pattern("exclude", p) for p in _as_tuple(self.exclude)),
            "selection": _check_choice("selection", self.selection, tuple(SELECTIONS)),
            "chunk_keep": _check_int("chunk_keep", self.chunk_keep, minimum=1),
            "value_dtype": _check_choice("value_dtype", self.value_dtype, VALUE_DTYPES),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def get_config(self) -> dict:
        """The arguments, as the constructor takes them."""
        return {**vars(self), "exclude": list(self.exclude)}

    def layout(self, variables: Sequence, growth: float = 1.0) -> Layout:
        """Plans the exchange of `variables`.

        Args:
            variables: in the order of `build(variables)`.
            growth: how far ratios above `WARMUP_RATIO` have grown from there, in [0, 1]. Any growth
                compresses the same variables.

        Raises:
            ValueError: a pattern matches no variable, or "auto" does not know a layer.
        """
        paths = unique_paths([v.path if hasattr(v, "path") else v.name for v in variables])
        excluded = self.excluded(paths)
        ratios = self._ratios(variables, paths)
        tensors = tuple(
            tensor_layout(
                path,
                tuple(v.shape),
                _dtype_name(v),
                1 if i in excluded else _grown(ratio, growth),
                self.selection,
                self.chunk_keep,
            )
            for i, (path, v, ratio) in enumerate(zip(paths, variables, ratios, strict=True))
        )
        return Layout(tensors, self.beta, self.value_dtype)

    def excluded(self, paths: Sequence[str]) -> frozenset[int]:
        """Positions of the paths that match a pattern of `exclude`."""
        for pattern in self.exclude:
            _check_matches("exclude", pattern, paths)
        return frozenset(
            i for i, path in enumerate(paths) if any(re.search(p, path) for p in self.exclude)
        )

    def _ratios(self, variables, paths):
        if self.compression_ratio == "auto":
            from tf_scalecom.wire.auto_ratio import auto_ratios  # which needs Keras, and its layers

            return auto_ratios(variables, paths)
        if isinstance(self.compression_ratio, Mapping):
            for pattern in self.compression_ratio:
                _check_matches("compression_ratio", pattern, paths)
            return [
                next((r for p, r in self.compression_ratio.items() if re.search(p, path)), 1)
                for path in paths
            ]
        return [self.compression_ratio] * len(paths)


def check_warmup_steps(warmup_steps) -> int:
    """Returns a valid `warmup_steps`, or raises ValueError."""
    return _check_int("warmup_steps", warmup_steps, minimum=0)


def check_warmup(warmup) -> str:
    """Returns a valid `warmup`, or raises ValueError."""
    return _check_choice("warmup", warmup, WARMUPS)


def check_hierarchical(hierarchical) -> bool:
    """Returns a valid `hierarchical`, or raises ValueError."""
    if not isinstance(hierarchical, bool):
        _refuse("hierarchical", hierarchical, "True or False", "Choose one of them.")
    return hierarchical


def _grown(ratio, growth):
    """The ratio of a variable at a growth, geometrically from `WARMUP_RATIO` to its own."""
    return WARMUP_RATIO * (ratio / WARMUP_RATIO) ** growth if ratio > WARMUP_RATIO else ratio


def _check_ratio(ratio):
    expected = 'a number >= 1, "auto", or a dict {regex of variable paths: number >= 1}'
    if isinstance(ratio, str) and ratio == "auto":
        return ratio
    if isinstance(ratio, Mapping):
        if not ratio:
            _refuse("compression_ratio", ratio, expected, "Name at least one pattern.")
        return {
            _check_pattern("compression_ratio", pattern): _check_number(
                f"compression_ratio[{pattern!r}]", value, "a number >= 1", lambda r: r >= 1
            )
            for pattern, value in ratio.items()
        }
    return _check_number("compression_ratio", ratio, expected, lambda r: r >= 1)


def _check_number(name, value, expected, is_valid):
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not _is_finite(value) or not is_valid(value):
        _refuse(name, value, expected, "Correct the argument.")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _is_finite(number) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond the range of floats
        return False


def _check_int(name, value, minimum):
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < minimum:
        _refuse(name, value, f"an integer >= {minimum}", "Correct the argument.")
    return int(value)


def _check_choice(name, value, choices):
    if not isinstance(value, str) or value not in choices:
        _refuse(name, value, f"one of {', '.join(map(repr, choices))}", "Choose one of them.")
    return value


def _check_pattern(name, pattern):
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        _refuse(name, pattern, "regular expressions as strings", f"Correct it ({error}).")
    return pattern


def _check_matches(name, pattern, paths):
    if not any(re.search(pattern, path) for path in paths):
        _refuse(
            name,
            pattern,
            "patterns that match the path of at least one trainable variable",
            f"Correct or remove it; the paths are {list(paths)}.",
        )


def _refuse(name, value, expected, advice):
    raise ValueError(
        f"`{name}` of ScaleComOptimizer: expected {expected}; received {value!r}. {advice}"
    )


def _as_tuple(patterns):
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _dtype_name(variable) -> str:
    return variable.dtype if isinstance(variable.dtype, str) else variable.dtype.name
