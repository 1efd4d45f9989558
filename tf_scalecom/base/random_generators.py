"""Python's and NumPy's random generators, which the launcher has start alike on all workers.

Imports no TensorFlow: it has its part as the package is imported, before a script draws anything.
"""

import contextlib
import hashlib
import os
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

# The seed of what all workers draw alike (fit/shared_seed.py); the launcher sets it.
SEED_VARIABLE = "TF_SCALECOM_SEED"


class Generator(NamedTuple):
    """A generator that a whole process shares."""

    seed: Callable
    state: Callable
    restore: Callable

    def digest(self) -> str:
        """The same for the same state."""
        return hashlib.sha256(pickle.dumps(self.state())).hexdigest()


GENERATORS = (
    Generator(random.seed, random.getstate, random.setstate),
    Generator(np.random.seed, np.random.get_state, np.random.set_state),
)
# Of the generators, in their order, as they were when the package was imported.
digests_at_import: list[str] = []


def start_from_launcher() -> None:
    """Has the generators start from the launcher's seed, if there is one.

    Raises:
        ValueError: It is no seed.
    """
    if (seed := launcher_seed()) is not None:
        for generator in GENERATORS:
            generator.seed(seed)
    digests_at_import[:] = (generator.digest() for generator in GENERATORS)


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Has the generators go on afterwards as if nobody had drawn anything meanwhile."""
    states = [generator.state() for generator in GENERATORS]
    try:
        yield
    finally:
        for generator, state in zip(GENERATORS, states, strict=True):
            generator.restore(state)


def launcher_seed(environment: Mapping[str, str] = os.environ) -> int | None:
    """The launcher's seed, None without one.

    Raises:
        ValueError: It is no seed.
    """
    text = environment.get(SEED_VARIABLE)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 99 and int(text) < 2**32):
        raise ValueError(
            f"Expected a whole number from 0 to {2**32 - 1} in the environment variable "
            f"{SEED_VARIABLE}, received {text!r}: set one, the same for all workers, or unset it."
        )
    return int(text)
