"""Outside of compat/, nothing of TensorFlow or Keras is used that is neither public nor declared.

So that the check at import looks for all of it, and a new version is a change in one folder.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
from package_source import ROOT

from tf_scalecom.compat import declared

PACKAGE = ROOT / "tf_scalecom"
COMPAT = PACKAGE / "compat"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if COMPAT not in path.parents)
DECLARED = {name for names in declared.declared_members.values() for name in names}
INSIDES = {
    **dict.fromkeys(("tf", "tensorflow"), ("python", "compiler", "__internal__")),
    "keras": ("src",),
}
FRAMES = ("_getframe", "f_back", "f_code", "f_locals", "currentframe", "__code__", "inspect.stack")
INSIDES_BY_NAME = re.compile(r"(tensorflow\.(python|compiler)|keras\.src)\b")
# Functions that take the name of an attribute.
BY_NAME = ("getattr", "setattr", "hasattr", "delattr", "__setattr__", "__delattr__", "wrap")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", "_tf_scalecom"))


def owner(node: ast.Attribute) -> str | None:
    """The variable whose attribute it is."""
    return node.value.id if isinstance(node.value, ast.Name) else None


def private_modules(tree: ast.AST) -> list[str]:
    """Modules inside of TensorFlow and Keras that are imported, or reached by attributes."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr in INSIDES.get(owner(node), ()):
            found.append(f"{owner(node)}.{node.attr}")
        elif isinstance(node, ast.Constant) and INSIDES_BY_NAME.match(str(node.value)):
            found.append(str(node.value))
    return [name for name in found if re.match(r"(tf|tensorflow|keras)\.", name)]


def private_uses(tree: ast.AST) -> set[str]:
    """Names with an underscore of attributes that are used, also by `getattr` and the like."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else function
            name = name.id if isinstance(name, ast.Name) else name
            if name in BY_NAME:
                texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
                found.update(text for text in texts if isinstance(text, str))
    return {name for name in found if is_private(name)}


def own_names(tree: ast.AST) -> set[str]:
    """What a file defines: functions, classes, variables, and attributes of `self`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if owner(node) == "self" else set()
    return found


# Public, whatever their first letter: of named tuples, and of `os`.
PUBLIC = {"_replace", "_asdict", "_fields", "_exit"}


def undeclared(tree: ast.AST) -> set[str]:
    return private_uses(tree) - own_names(tree) - DECLARED - PUBLIC


def frames_read(tree: ast.AST) -> list[str]:
    """What is read of callers' frames: attributes, and names that are imported."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names += [node.attr, f"{owner(node)}.{node.attr}"]
        elif isinstance(node, ast.ImportFrom):
            names += [name for a in node.names for name in (a.name, f"{node.module}.{a.name}")]
    return [name for name in names if name in FRAMES]


def declarations(tree: ast.AST) -> list[str]:
    """Calls of `declared.symbol`, which finds anything by its name."""
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if call in ("symbol", "declared.symbol")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_is_private_comes_from_compat(path):
    tree = ast.parse(path.read_text())
    assert private_modules(tree) == []
    assert undeclared(tree) == set()
    assert frames_read(tree) == []
    assert declarations(tree) == []


@pytest.mark.parametrize(
    "line",
    [
        "from tensorflow.python.eager import context",
        "import tensorflow.compiler.xla",
        "from keras.src import callbacks",
        "from keras import src",
        "keras.src.layers",
        "tf.python.eager",
        "model._undeclared",
        "self._undeclared",
        "optimizer._undeclared = 1",
        "getattr(model, '_undeclared', None)",
        "object.__setattr__(model, '_undeclared', None)",
        "wrap(keras.Variable, '_undeclared', function)",
        "sys._getframe(1)",
        "frame.f_locals['self']",
        "from sys import _getframe",
        "inspect.stack()",
        "from inspect import stack",
        "importlib.import_module('keras.src.layers')",
        "getattr(importlib.import_module('tensorflow.python'), name)",
        "symbol(path, why)",
        "declared.symbol(path, why)",
    ],
)
def test_what_the_rules_find(line):
    tree = ast.parse(line)
    assert private_modules(tree) or undeclared(tree) or frames_read(tree) or declarations(tree)


def module_of(path: Path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return importlib.import_module(name.removesuffix(".__init__"))


def classes_on_foreign_ones() -> list[tuple[type, ast.ClassDef]]:
    """The package's classes that have a class of TensorFlow or Keras among their bases."""
    found = []
    for path in FILES:
        if path.name == "__main__.py":
            continue
        for node in ast.parse(path.read_text()).body:
            cls = isinstance(node, ast.ClassDef) and getattr(module_of(path), node.name, None)
            if cls and foreign_bases(cls):
                found.append((cls, node))
    return found


def foreign_bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith(("tensorflow.", "keras."))]


def test_what_subclasses_override_is_declared():
    """Also where this package means a name of its own: the base class would use it."""
    classes = classes_on_foreign_ones()
    assert {"Extended", "ScaleComAllReduce", "CollectiveLauncher", "ScaleComOptimizer"} <= {
        cls.__name__ for cls, _ in classes
    }
    overridden = {
        f"{cls.__name__}.{name}"
        for cls, node in classes
        for name in filter(is_private, own_names(node))
        if any(declared.knows(base, name) for base in foreign_bases(cls))
        and not any(name in declared.declared_members.get(base, ()) for base in cls.__mro__)
    }
    assert overridden == set()


def test_what_is_declared_is_used():
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    uses = {name: len(re.findall(rf"\b{name}\b", source)) for name in DECLARED}
    assert [name for name, count in uses.items() if count < 2] == []
    named = {
        name
        for path in COMPAT.glob("*.py")
        for name, value in vars(importlib.import_module(f"tf_scalecom.compat.{path.stem}")).items()
        if path.stem != "__init__" and not inspect.isroutine(value) and is_symbol(path, name)
    }
    assert [name for name in named if len(re.findall(rf"\b{name}\b", source)) < 2] == []


def is_symbol(path: Path, name: str) -> bool:
    return re.search(rf"^{name}: Any = symbol\(", path.read_text(), re.M) is not None
