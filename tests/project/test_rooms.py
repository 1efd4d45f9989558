"""The rooms of the package: which may import from which."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "tf_scalecom"

# From the ground up: a module imports from its own room and from those above it in this list. Each
# room's `__init__.py` says what it is for; CONTRIBUTING.md has a map.
GROUND_UP = (
    "version",
    "base",
    "compat",
    "wire",
    "ops",
    "workers",
    "reduction",
    "launch",
    "state",
    "fit",
    "update",
    # What users import, files beside the rooms:
    "cross_device_ops",
    "methods",
    "compressed_optimizer",
    "optimizer",
    "optimizer_by_name",
    "recipes",
    "extended",
    "strategy",
    "callbacks",
    # and what they start.
    "slurm",
    "doctor",
    "simulate",
    "forecast",
    "__init__",
    "__main__",
)


def modules() -> dict[str, Path]:
    """Name, without the package's, -> file."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__" and len(parts) > 1:
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


MODULES = modules()


def room(module: str) -> str:
    return module.partition(".")[0]


def imported(module: str) -> Iterator[str]:
    """Modules of the package that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: expected absolute imports"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package != "tf_scalecom":
                continue
            # `from a import b` is of the module a.b if there is one, else of a.
            if rest not in MODULES:
                rest = rest.rpartition(".")[0] or "__init__"
            if rest != module:
                yield rest


ARROWS = {module: set(imported(module)) for module in MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module):
    upwards = {
        other
        for other in ARROWS[module]
        if GROUND_UP.index(room(other)) > GROUND_UP.index(room(module))
    }
    assert not upwards, f"{module} imports from rooms above its own"


def test_imports_make_no_circle():
    done: set[str] = set()

    def visit(module, path):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(ARROWS[module]):
                visit(other, [*path, module])
            done.add(module)

    for module in MODULES:
        visit(module, [])


def test_what_travels_is_plain_python():
    """The launcher, the options of all commands and every plan do without TensorFlow."""
    heavy = {
        module: name
        for module in MODULES
        # The one rule that looks at layers is imported when it is asked for.
        if room(module) in ("base", "wire", "launch") and module != "wire.auto_ratio"
        for node in ast.parse(MODULES[module].read_text()).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
        if name.partition(".")[0] in ("tensorflow", "keras")
    }
    assert not heavy
