"""Methods of TensorFlow and Keras that this package takes part in, where they have no hook."""

import functools
from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, function: Callable) -> None:
    """Has a function of this package run in place of one of theirs, of which it makes use.

    Args:
        owner: class or module, where all callers look it up.
        name: of the method or function.
        function: is called with the original, then with what that is called with (first of all
            `self`, of a method), and returns what that returns.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return function(original, *args, **kwargs)

    setattr(owner, name, wrapped)
