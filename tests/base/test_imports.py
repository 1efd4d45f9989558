"""What is imported when: TensorFlow and Keras take seconds, so only where something needs them."""

import ast
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from package_source import ROOT

import tf_scalecom as sc
from tf_scalecom.base.random_generators import SEED_VARIABLE

LIMIT_SECONDS = 120
SAY_HEAVY = "print([m for m in ('tensorflow', 'keras') if m in sys.modules])"


def python(code: str, *arguments: str, **environment: str) -> str:
    """The last line that a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def imported_by(command: list[str], module: str = "tf_scalecom", **environment: str) -> str:
    """Which of TensorFlow and Keras a command has imported when it ends."""
    code = f"""
import runpy, sys
sys.argv = ["program", *sys.argv[1:]]
try:
    runpy.run_module({module!r}, run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
{SAY_HEAVY}
"""
    return python(code, *command, **environment)


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["run", "--help"],
        ["simulate", "--help"],
        ["plan", "--help"],
        ["doctor", "--help"],
        ["run", "-n", "1", "-m", "this"],
    ],
    ids=" ".join,
)
def test_commands_import_no_tensorflow_before_they_need_it(command):
    """Nor do they mind which back end Keras would have here."""
    assert imported_by(command, KERAS_BACKEND="jax") == "[]"


@pytest.mark.slow
def test_a_script_may_choose_keras_back_end_itself():
    code = """
import os
import tf_scalecom as sc
os.environ["KERAS_BACKEND"] = "tensorflow"
print(sc.ScaleComOptimizer.__name__)
"""
    assert python(code, KERAS_BACKEND="jax") == "ScaleComOptimizer"


def test_slurm_imports_no_tensorflow():
    # What it becomes in the end is another program; here a function that returns.
    code = f"""
import os, sys
from tf_scalecom import slurm
os.execvp = lambda *_: None
slurm.main(["train"])
assert "TF_CONFIG" in os.environ
{SAY_HEAVY}
"""
    task = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "1",
        "SLURM_NODEID": "1",
        "SLURM_LOCALID": "0",
    }
    assert python(code, **task) == "[]"


def test_rooms_in_plain_python_import_no_tensorflow():
    rooms = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for room in ("base", "wire", "launch")
        for path in sorted((ROOT / "tf_scalecom" / room).glob("*.py"))
        if path.stem != "auto_ratio"  # the one rule that looks at layers
    ]
    assert len(rooms) > 10
    assert python(f"import sys, {', '.join(rooms)}\n{SAY_HEAVY}") == "[]"


@pytest.mark.slow
def test_public_names_come_with_their_first_use():
    code = """
import sys
import tf_scalecom as sc
assert set(sc.__all__) <= set(dir(sc))
assert not {"tensorflow", "keras"} & set(sys.modules)
from tf_scalecom import *
assert "tensorflow" in sys.modules
print(all(globals()[name] is getattr(sc, name) for name in sc.__all__))
"""
    assert python(code) == "True"


def test_types_and_names_used_later_are_the_same():
    """What a type checker sees in the package is what a program gets."""
    tree = ast.parse((ROOT / "tf_scalecom" / "__init__.py").read_text())
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    for statement in block.body:
        for alias in statement.names:
            value = getattr(sc, alias.name)
            assert (
                value is sys.modules.get(f"{statement.module}.{alias.name}")
                or value.__module__ == statement.module
            )


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'tf_scalecom' has no attribute 'Scalecom'"):
        _ = sc.Scalecom


# --- What the import alone must do ---------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), compression_ratio=7)
    model.compile(optimizer, keras.losses.MeanSquaredError())
    model.fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0)
    paths = [folder / "model.keras", folder / "model.h5"]
    for path in paths:
        model.save(path)
    return paths


@pytest.mark.parametrize(
    "imports",
    [
        "import tf_scalecom, keras",
        "import keras, tf_scalecom",
    ],
)
@pytest.mark.slow
def test_a_saved_model_loads_after_the_import_of_the_package_alone(saved, imports):
    code = f"""
import sys
{imports}
for path in sys.argv[1:]:
    optimizer = keras.saving.load_model(path).optimizer
    assert type(optimizer).__name__ == "ScaleComOptimizer", path
    assert optimizer.get_config()["compression_ratio"] == 7, path
print("loaded")
"""
    assert python(code, *map(str, saved)) == "loaded"


@pytest.mark.parametrize("imports", ["import tf_scalecom, keras", "import keras, tf_scalecom"])
@pytest.mark.slow
def test_what_others_draw_as_they_are_imported_is_no_use_of_the_generators(imports):
    code = f"""
import json, random
import numpy as np
{imports}
tf_scalecom.MultiWorkerMirroredStrategy
from tf_scalecom.base import random_generators
unused = [g.digest() for g in random_generators.GENERATORS] == random_generators.digests_at_import
print(json.dumps([unused, random.random(), np.random.random()]))
"""
    unused, *drawn = json.loads(python(code, **{SEED_VARIABLE: "12"}))
    assert unused
    expected = "import random, numpy as np; random.seed(12); np.random.seed(12)"
    assert drawn == json.loads(python(f"{expected}; print([random.random(), np.random.random()])"))


def test_other_finders_of_modules_are_asked_too(tmp_path):
    """A Keras that another finder of modules finds, as in an editable installation."""
    (tmp_path / "elsewhere.py").write_text("saving = None\n")
    code = f"""
import importlib.abc, importlib.util, sys
from tf_scalecom.base.after_import import after_import
import contextlib
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "elsewhere":
            return importlib.util.spec_from_file_location(name, {str(tmp_path / "elsewhere.py")!r})
sys.meta_path.append(Finder())
done = []
after_import("elsewhere", lambda: done.append(sys.modules["elsewhere"]), contextlib.nullcontext)
importlib.util.find_spec("elsewhere")
assert not done
import elsewhere
print(done == [elsewhere], "exec_module" in vars(elsewhere.__loader__))
"""
    assert python(code) == "True False"
