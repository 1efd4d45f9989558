"""Names of a package that are imported from its modules when they are first used (PEP 562)."""

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable, Callable]:
    """What a package takes for its `__getattr__` and `__dir__`.

    Args:
        package: full name of the package.
        modules: name -> full name of the module that defines it, or that it stands for itself.

    Example:
        __getattr__, __dir__ = lazy_names(__name__, {"Model": "shop.model", "tools": "shop.tools"})
    """

    def get(name):
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        value = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)  # from here on without this function
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *modules})
