"""Declarations of what is private to TensorFlow and Keras: one that is gone is noted, not raised.

So all that is gone can be named at once (`check.py`), and nothing fails in the middle of a run.
"""

import dis
import importlib
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# What was declared and is not there, e.g. "tensorflow.python.x.Y (why it is needed)".
missing: list[str] = []
# Owner -> names of its private members that are declared.
declared_members: dict[Any, set[str]] = {}


def symbol(path: str, why: str) -> Any:
    """A private module, class, function or object.

    Args:
        path: where it is, e.g. "tensorflow.python.eager.context.context".
        why: what it is needed for, for the error and for whoever looks for another way.

    Returns:
        It; None, and a note in `missing`, if it is not there.
    """
    module = path
    names: list[str] = []
    try:
        while True:
            try:
                found = importlib.import_module(module)
                break
            except ModuleNotFoundError as error:
                # Not a module that it imports in turn.
                if "." not in module or not f"{module}.".startswith(f"{error.name}."):
                    raise
                module, _, name = module.rpartition(".")
                names.insert(0, name)
        for name in names:
            found = getattr(found, name)
    except (ImportError, AttributeError):
        missing.append(f"{path} ({why})")
        return None
    return found


def members(owner: Any, reasons: Mapping[str, str]) -> None:
    """Declares what is used of an object beyond what is public.

    Args:
        owner: class or module; None, of a class that is gone, says nothing.
        reasons: name of a method or attribute -> what it is needed for.
    """
    if owner is None:
        return
    declared_members.setdefault(owner, set()).update(reasons)
    missing.extend(
        f"{_name(owner)}.{name} ({why})" for name, why in reasons.items() if not knows(owner, name)
    )


def parameters(owner: Any, method: str, names: Sequence[str], why: str) -> None:
    """Declares parameters of a method that are read or passed by name."""
    if owner is None or not knows(owner, method):
        return
    declared_members.setdefault(owner, set()).add(method)
    has = inspect.signature(getattr(owner, method)).parameters
    missing.extend(
        f"parameter {name} of {_name(owner)}.{method} ({why})" for name in names if name not in has
    )


def knows(owner: Any, name: str) -> bool:
    """Whether an object has an attribute, or is a class whose methods set it."""
    if hasattr(owner, name):
        return True
    classes = owner.__mro__[:-1] if isinstance(owner, type) else ()
    return any(_sets(code, name) for cls in classes for code in _codes(cls))


def _codes(cls) -> Iterator[types.CodeType]:
    for value in vars(cls).values():
        function: Any = value.fget if isinstance(value, property) else value
        function = inspect.unwrap(function)
        if isinstance(function, types.FunctionType):
            yield function.__code__


def _sets(code: types.CodeType, name: str) -> bool:
    return name in code.co_names and any(
        step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code)
    )


def _name(owner):
    return owner.__name__ if not isinstance(owner, type) else f"{owner.__module__}.{owner.__name__}"
