"""What Keras is doing on this thread: which call is under way, which variable is being made.

Keras tells neither a strategy nor a dataset who asks. So the methods that do the asking are
wrapped, and note what they were called with while they run.
"""

import contextlib
import dataclasses
import functools
import inspect
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from tf_scalecom.compat.hooks import wrap
from tf_scalecom.compat.keras_trainer import Trainer


@dataclasses.dataclass
class Call:
    """A call to `fit`, `evaluate` or `predict`.

    Attributes:
        name: which one.
        model: whose.
        arguments: name -> value, defaults included.
        callbacks: the list that Keras made of them; None before they begin.
        epoch: the number of the epoch that is under way, or comes first.
        builds: whether Keras is building the model for the data of it.
        epoch_iterator: Keras's, over the data of it; None before it is made.
        logs: those of the steps that its last epoch has made, as far as they were asked for.
    """

    name: str
    model: keras.Model
    arguments: Mapping
    callbacks: keras.callbacks.CallbackList | None
    epoch: int
    builds: bool = False
    epoch_iterator: Any = None
    logs: Mapping = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Inside, the model is being built."""
        self.builds = True
        try:
            yield
        finally:
            self.builds = False


class _UnderWay(threading.local):
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.variables: list[keras.Variable] = []


_under_way = _UnderWay()


def innermost_call() -> Call | None:
    """The call that Keras makes on this thread, the innermost if there are several."""
    return _under_way.calls[-1] if _under_way.calls else None


def outermost_call() -> Call | None:
    """The call in which all others are made."""
    return _under_way.calls[0] if _under_way.calls else None


def path_of_new_variable(name: str | None) -> str:
    """Path of the Keras variable that is being made here; else `name`, "" for None.

    Keras tells TensorFlow the last part of it alone, the same for all kernels of a model.
    """
    return _under_way.variables[-1].path if _under_way.variables else name or ""


@functools.cache
def note() -> None:
    """Has all of this be noted from now on; later calls do nothing."""
    for name in ("fit", "evaluate", "predict"):
        wrap(Trainer, name, functools.partial(_call, name))
    for event in ("on_train_begin", "on_test_begin", "on_predict_begin"):
        wrap(keras.callbacks.CallbackList, event, _begin)
    wrap(keras.callbacks.CallbackList, "on_epoch_begin", _begin_epoch)
    wrap(keras.Variable, "_initialize", _make_variable)


@contextlib.contextmanager
def _inside(stack: list, entry) -> Iterator[None]:
    stack.append(entry)
    try:
        yield
    finally:
        stack.pop()


def _call(name, method, model, *args, **kwargs):
    try:
        bound = inspect.signature(method).bind(model, *args, **kwargs)
    except TypeError:
        return method(model, *args, **kwargs)  # which says so, in its own words
    bound.apply_defaults()
    arguments = bound.arguments
    callbacks = arguments["callbacks"]
    is_list = isinstance(callbacks, keras.callbacks.CallbackList)  # Keras then makes none
    call = Call(
        name,
        model,
        arguments,
        callbacks if is_list else None,
        arguments.get("initial_epoch", 0),
    )
    with _inside(_under_way.calls, call):
        return method(model, *args, **kwargs)


def _begin(begin, callbacks, *args, **kwargs):
    call = innermost_call()
    # A list may be a callback in another one, which begins before.
    if call is not None and call.callbacks is None:
        call.callbacks = callbacks
    return begin(callbacks, *args, **kwargs)


def _begin_epoch(begin, callbacks, epoch, *args, **kwargs):
    call = innermost_call()
    if call is not None and callbacks is call.callbacks:
        call.epoch = epoch
    return begin(callbacks, epoch, *args, **kwargs)


def _make_variable(make, variable, value):
    with _inside(_under_way.variables, variable):
        return make(variable, value)
