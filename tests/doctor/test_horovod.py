"""The doctor finds what a script still has of Horovod."""

import re
import textwrap

import pytest
from package_source import ROOT

from tf_scalecom.__main__ import main
from tf_scalecom.doctor import horovod

SCRIPT = """
import horovod.tensorflow.keras as hvd
from horovod.tensorflow.keras.callbacks import MetricAverageCallback as Average
import keras

hvd.init()
gpus = gpus[hvd.local_rank()]
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()),
                                     compression=hvd.Compression.fp16)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), Average()]
hvd.something_else()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def found(script):
    """What stands in which line."""
    return [
        (int(line), name)
        for problem in horovod.leftovers(script)
        for name, line in re.findall(r"received (.*) in .*, line (\d+)\. \w", problem)
    ]


def test_each_name_is_found_once_with_its_line(script):
    assert found(script) == [
        (2, "import horovod.tensorflow.keras"),
        (6, "hvd.init"),
        (7, "hvd.local_rank"),
        (8, "hvd.DistributedOptimizer"),
        (8, "hvd.size"),
        (9, "hvd.Compression.fp16"),
        (10, "Average"),
        (10, "hvd.callbacks.BroadcastGlobalVariablesCallback"),
        (11, "hvd.something_else"),
    ]


def test_each_has_what_to_write_in_its_place(script):
    said = "\n".join(horovod.leftovers(script))
    assert "hvd.local_rank in" in said and "a worker trains on all GPUs" in said
    assert "metrics count the samples of all workers" in said
    assert 'value_dtype="float16"' in said
    assert said.count("See From Horovod in the documentation.") == 1


def test_what_is_left_without_the_import_is_found(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import tf_scalecom as sc\nif hvd.rank() == 0:\n    print(sc.horovod)\n")
    assert found(path) == [(2, "hvd.rank")]


def test_scripts_of_this_package_have_nothing_of_it():
    for path in [*(ROOT / "examples").glob("*.py"), *(ROOT / "tests" / "scripts").glob("*.py")]:
        assert list(horovod.leftovers(path)) == [], path


@pytest.mark.parametrize("name", ["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_processes_of_mpirun_without_tf_config_are_a_problem(name):
    (problem,) = horovod.launched({name: "4"})
    assert f"received {name}=4 alone" in problem and "run -n 4" in problem
    assert list(horovod.launched({name: "1"})) == list(horovod.launched({})) == []
    assert list(horovod.launched({name: "4", "TF_CONFIG": "{}"})) == []


def test_the_command_says_so_and_fails(script, capsys, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert main(["doctor", str(script)]) == 1
    said = capsys.readouterr().out
    assert said.count("PROBLEM") == 9
    assert main(["doctor", str(script.with_name("none.py"))]) == 1
    assert "Expected a Python script; received" in capsys.readouterr().out


def test_the_page_has_every_name():
    page = textwrap.dedent((ROOT / "docs" / "horovod.md").read_text())
    assert [name for name in horovod.IN_PLACE_OF if name not in page] == []
