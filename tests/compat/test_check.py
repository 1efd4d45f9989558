"""Another TensorFlow, Keras or back end is one error or warning at import, with names."""

import subprocess
import sys
import tomllib
import warnings

import keras
import pytest
from package_source import ROOT, run

from tf_scalecom.base import keras_back_end
from tf_scalecom.compat import declared, versions
from tf_scalecom.compat.check import check

WITHOUT = """
import keras
from tensorflow.python.eager.context import Context
from tensorflow.python.ops import collective_ops

del collective_ops.all_reduce_v2
del keras.optimizers.Adam.__mro__[{place}]._get_variable_index
del Context.abort_collective_ops
try:
    import tf_scalecom.{module}
except ImportError as error:
    print(error)
try:
    import tf_scalecom.{module}
except ImportError as again:
    print("the same again:", str(again).count("expected tensorflow>="), str(again).count(" ("))
"""


@pytest.mark.parametrize("module", ["callbacks", "optimizer"])
@pytest.mark.slow
def test_all_that_is_missing_is_one_error_at_import(module):
    owners = [
        i for i, c in enumerate(keras.optimizers.Adam.__mro__) if "_get_variable_index" in vars(c)
    ]
    script = WITHOUT.format(place=owners[0], module=module)
    error = run(sys.executable, "-c", script, cwd=ROOT)
    assert error.count("tf_scalecom: expected tensorflow>=") == 1
    assert (
        f"received tensorflow {versions.installed('tensorflow')} and keras {keras.__version__}"
        in error
    )
    assert "  tensorflow.python.ops.collective_ops.all_reduce_v2 (calls with keys of this" in error
    assert "Optimizer._get_variable_index (a variable's place" in error
    assert "Context.abort_collective_ops (ends collectives" in error
    assert error.count(" (") == 3
    assert "the same again: 1 3" in error
    assert "pip install 'tensorflow>=2.20,<2.22' 'keras>=3.15,<3.16'" in error


def test_missing_parameters_are_named(monkeypatch):
    monkeypatch.setattr(declared, "missing", [])
    declared.parameters(keras.Model, "fit", ["epochs", "no_such"], "a reason")
    (missing,) = declared.missing
    assert missing.startswith("parameter no_such of keras.")
    assert missing.endswith("Model.fit (a reason)")


@pytest.mark.parametrize(("package", "version"), [("tensorflow", "2.22.0"), ("keras", "3.14.9")])
def test_an_untested_version_is_one_warning(monkeypatch, package, version):
    monkeypatch.setattr(sys.modules[package], "__version__", version)
    with pytest.warns(UserWarning) as warned:
        check()
    (warning,) = warned
    message = str(warning.message)
    assert f"{package} {version}" in message
    assert all(f"{name}{tested}" in message for name, tested in versions.TESTED.items())


def test_the_installed_versions_are_tested():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check()


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [
        ("2.19.1", False),
        ("2.20.0", True),
        ("2.21.3", True),
        ("2.20.0-rc1", True),
        ("2.22.0rc0", False),
        ("2.100.0", False),
        ("3.0.0", False),
    ],
)
def test_ranges(version, is_tested):
    assert versions.is_tested("tensorflow", version) is is_tested


def test_the_ranges_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = {name + tested for name, tested in versions.TESTED.items()}
    assert ranges == {d for d in project["dependencies"] if d.startswith(("tensorflow", "keras"))}


@pytest.mark.parametrize("first", ["import tf_scalecom.callbacks", "import keras"])
@pytest.mark.parametrize("name", ["jax", "torch", "numpy", "openvino"])
@pytest.mark.parametrize("place", ["variable", "file"])
def test_other_back_ends_are_refused_by_name(tmp_path, name, place, first):
    """Before Keras or the back end, which need not be installed, is looked for."""
    (tmp_path / "keras.json").write_text(f'{{"backend": "{name}"}}')
    settings = {"KERAS_BACKEND": name} if place == "variable" else {"KERAS_HOME": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", f"import tf_scalecom; {first}"],
        cwd=ROOT, env=settings, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert process.returncode != 0
    *_, error = process.stderr.splitlines()
    assert "expected Keras's back end to be tensorflow" in error
    assert f"received {name!r}, from" in error
    assert "KERAS_BACKEND=tensorflow" in error
    assert "site-packages" not in process.stderr


def test_a_back_end_of_keras_that_is_loaded_counts(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # too late for this process
    keras_back_end.require_tensorflow()
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    with pytest.raises(ImportError, match=r"received 'torch', from keras\.config"):
        check()
