"""What is trained: the interface that models/ plug into, and the order of the data."""

import contextlib
import importlib.machinery
import importlib.util
import numbers
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from tf_scalecom.base.raised_at import told

FACTORY = "build_task"
MEMBERS = ("train_size", "build_model", "batch", "loss", "evaluate")


class Task(Protocol):
    """A model with its data.

    Attributes:
        train_size: number of training examples.
    """

    train_size: int

    def build_model(self) -> keras.Model:
        """A new model; its initial weights follow from Keras's random seed alone."""

    def batch(self, indices: np.ndarray):
        """The training examples of the given indices, as a nest of arrays of fixed shapes."""

    def loss(self, model: keras.Model, batch) -> tf.Tensor:
        """Mean training loss of a batch, a scalar. Called inside a `tf.function`."""

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Figures of merit on held-out data; always the same names."""


class TaskError(ValueError):
    """A task that fails, or that gives what is of no use."""


@contextlib.contextmanager
def calling(member: str) -> Iterator[None]:
    """Of errors inside, which are the task's, makes one.

    Raises:
        TaskError: there was one.
    """
    try:
        yield
    except TaskError:
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"Expected {member}() of the task to work; received {told(error)}. Correct the task "
            "or, where there is no room, take a smaller --batch-size."
        ) from error


def expect(is_so: bool, what: str, received: object) -> None:
    """Of what a task gives.

    Raises:
        TaskError: it is not so.
    """
    if not is_so:
        raise TaskError(f"Expected {what}; received {received}. Correct the task.")


def load_task(path: pathlib.Path) -> Task:
    """Imports a Python file, whose neighbours it may import by bare name, and builds its task.

    The task's new attribute `task_name` is the file's, with its folder's: "image/small_task".

    Raises:
        ValueError: there is no such file, it cannot be imported, or its `build_task` is missing or
            returns no task.
    """
    if not os.path.isfile(path):
        raise ValueError(
            f"Expected a Python file that defines {FACTORY}(); received {str(path)!r}, which is "
            "not a file here. Try models/image/task.py from the root of the repository."
        )
    factory = getattr(_imported(path), FACTORY, None)
    if not callable(factory):
        raise ValueError(
            f"Expected {path} to define {FACTORY}(), which returns a task; received a file "
            f"without it. See tf_scalecom/simulate/task.py for what a task is."
        )
    try:
        task = factory()
        missing = [name for name in MEMBERS if not hasattr(task, name)]
        size = getattr(task, "train_size", None)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"Expected {FACTORY}() of {path} to return a task; received {told(error)}. Correct the "
            "file, or what it needs."
        ) from error
    if missing:
        raise ValueError(
            f"Expected {FACTORY}() of {path} to return a task; received a {type(task).__name__} "
            f"without {', '.join(missing)}. See tf_scalecom/simulate/task.py for what a task is."
        )
    if not isinstance(size, numbers.Integral) or size < 1:
        raise ValueError(
            f"Expected `train_size` of the task of {path} to be a number of examples, an integer "
            f">= 1; received {size!r}. Correct the file, or its data."
        )
    try:
        task.task_name = f"{path.resolve().parent.name}/{path.stem}"
    except AttributeError as error:
        raise ValueError(
            f"Expected {FACTORY}() of {path} to return an object whose attributes can be set; "
            f"received a {type(task).__name__}, which takes no attribute `task_name`. Make its "
            "class an ordinary one, neither frozen nor with __slots__."
        ) from error
    return task


def _imported(path):
    sys.path.insert(0, str(path.resolve().parent))
    # No import statement can name it: it is in the way of no module of the user's.
    loader = importlib.machinery.SourceFileLoader(f"task file {path.stem}", str(path))
    spec = importlib.machinery.ModuleSpec(loader.name, loader, origin=str(path))
    spec.has_location = True  # the module has a __file__
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look there
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"Expected {path} to be a Python file that can be imported; received "
            f"{told(error)}. Correct the file, or install what it needs."
        ) from error
    return module


def identity(task: Task) -> dict[str, object]:
    """What tells a task from others, the same on every machine; for the files of its runs.

    A task that `load_task` did not load goes by the name of its class, unless it has a `task_name`.
    """
    name = getattr(task, "task_name", type(task).__name__)
    return {"task": name, "train_size": int(task.train_size)}


class DataOrder:
    """Which examples each learner sees in each step: a function of seed and step alone.

    Every epoch is a new permutation of all examples, of which the batches of learner 0, 1, ... of
    step 0, then those of step 1, ... are consecutive pieces. So methods with the same seed see the
    same data, a run that goes on after a kill needs no position, and one learner with a batch of
    n * b sees the data of n learners with b each.
    """

    def __init__(self, train_size: int, learners: int, batch_size: int, seed: int):
        self._train_size = train_size
        self._learners = learners
        self._batch_size = batch_size
        self._seed = seed
        self._epoch, self._permutation = -1, np.empty(0, np.int64)

    def indices(self, step: int, learner: int) -> np.ndarray:
        """int64 [batch size]."""
        start = (step * self._learners + learner) * self._batch_size
        positions = np.arange(start, start + self._batch_size)
        epochs, places = np.divmod(positions, self._train_size)
        return np.concatenate(
            [self._permuted(epoch)[places[epochs == epoch]] for epoch in np.unique(epochs)]
        )

    def _permuted(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            rng = np.random.default_rng([self._seed, epoch])
            self._epoch, self._permutation = epoch, rng.permutation(self._train_size)
        return self._permutation
