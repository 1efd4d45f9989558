"""What is to be done as soon as a module is imported, by whomever."""

import importlib.abc
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def after_import(
    name: str, action: Callable[[], None], within: Callable[[], AbstractContextManager]
) -> None:
    """Does something right after a module is imported: now, if that has been.

    Args:
        name: full name of the module.
        action: what to do. It may use the module, but import nothing that may be what imports it.
        within: makes a context in which the module is executed.
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action, within))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, as the finders behind it do, and notices when it is executed."""

    def __init__(self, name, action, within):
        self._name = name
        self._action = action
        self._within = within

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._name:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(fullname, path, target) for finder in behind)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any):
        # On the loader that was found, as others ask a module's loader for more than this.
        execute = loader.exec_module

        def exec_module(module):
            with self._within():
                execute(module)
            del loader.exec_module
            sys.meta_path.remove(self)
            self._action()

        loader.exec_module = exec_module
