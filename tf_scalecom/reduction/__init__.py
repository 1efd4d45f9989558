"""How the replicas' gradients become one: the methods, by name."""

import dataclasses
import functools
import importlib
from typing import NamedTuple

from tf_scalecom.wire.config import CompressionConfig


class _Registered(NamedTuple):
    """What a method does, in a line, and where it is: it is loaded when it is asked for."""

    words: str
    module: str
    name: str


METHODS = {
    "dense": _Registered("plain all-reduce", "dense", "Dense"),
    "clt_k": _Registered("ScaleCom: the leader's selection for all", "clt_k", "CltK"),
    "mean_top_k": _Registered(
        "oracle: the selection of the sum over all learners", "chosen_for_all", "MeanTopK"
    ),
    "shares_top_k": _Registered(
        "every learner leads a share of the chunks", "shares", "SharesTopK"
    ),
    "mixed_top_k": _Registered(
        "clt_k, and residuals made alike now and then by pictures in few bits", "mixed", "MixedTopK"
    ),
    "owners_top_k": _Registered(
        "every learner owns a share of the chunks, and is handed what is largest there",
        "owners",
        "OwnersTopK",
    ),
    "factored_moment_top_k": _Registered(
        "clt_k with Adam's step, by a factored mean of all gradients' squares",
        "second_moment",
        "FactoredMomentTopK",
    ),
    "sent_moment_top_k": _Registered(
        "clt_k with Adam's step, by the squares of all gradients that an element waited for",
        "second_moment",
        "SentMomentTopK",
    ),
    "sketch_top_k": _Registered(
        "the blocks that are largest in a sketch of the sum over all learners",
        "chosen_for_all",
        "SketchTopK",
    ),
    "local_top_k": _Registered(
        "each learner its own selection; the union grows", "local_top_k", "LocalTopK"
    ),
    "random_k": _Registered(
        "random elements, the same on all learners by a shared seed", "chosen_for_all", "RandomK"
    ),
    "power_sgd": _Registered("low rank with error feedback, the rival", "power_sgd", "PowerSGD"),
}

PICTURES = ("signs", "large_signs", "largest")


@dataclasses.dataclass(frozen=True)
class MethodOptions:
    """All that users can say to methods; each takes what concerns it.

    Attributes:
        compression: what to send, for methods that select elements.
        rank: of a method that sends matrices of a rank.
        seed: of what a method draws at random, alike on all replicas.
        picture: what replicas show each other of a residual, one of `PICTURES`.
        picture_every: steps from one to the next.
        beta_2: decay of a mean of squares.
        step_limit: of a method that makes Adam's step, in learning rates; None is none.
    """

    compression: CompressionConfig
    rank: int = 1
    seed: int = 0
    picture: str = "signs"
    picture_every: int = 10
    beta_2: float = 0.999
    step_limit: float | None = None


@functools.cache
def method_class(name: str):
    """The class of a method, a `reduction.method.Method`, by its name in `METHODS`.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in METHODS:
        raise ValueError(
            f"Expected a method of reduction, one of {', '.join(METHODS)}; received {name!r}. Take "
            "one of these, or add yours to METHODS in tf_scalecom/reduction/__init__.py."
        )
    registered = METHODS[name]
    return getattr(importlib.import_module(f"{__name__}.{registered.module}"), registered.name)
