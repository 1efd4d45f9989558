"""The simulator's command: its options, its runs, killed or not, and their files."""

import argparse
import dataclasses
import errno
import importlib
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf
from simulated_task import LinearClasses

from tf_scalecom.__main__ import main
from tf_scalecom.simulate import Simulation, SimulationConfig, command, plots, run, run_files
from tf_scalecom.simulate.run_files import Table, read_result, read_table
from tf_scalecom.simulate.task import load_task

TASK_FILE = pathlib.Path(__file__).parents[1] / "simulated_task.py"
SMALL = SimulationConfig(
    learners=2, batch_size=8, steps=4, compression_ratio=20, record_every=2, evaluate_every=2
)
OPTIONS = [
    "--learners=4",
    "--batch-size=8",
    "--compression-ratio=20",
    "--beta=0.3",
    "--momentum=0.5",
    "--momentum-placement=before",
    "--steps=60",
    "--record-every=5",
    "--evaluate-every=10",
]

TASK_OF_SIZE = """
class Task:
    train_size = {}
    build_model = batch = loss = evaluate = None
build_task = Task
"""


def start_command(out, *options):
    program = [sys.executable, "-m", "tf_scalecom", "simulate", str(TASK_FILE), f"--out={out}"]
    return subprocess.Popen([*program, *options], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_end(tmp_path):
    straight = start_command(tmp_path / "straight", *OPTIONS)
    killed = start_command(tmp_path / "killed", *OPTIONS, "--save-minutes=0")
    deadline = time.monotonic() + 240
    while not list((tmp_path / "killed").glob("*/evaluations.csv")):
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not list((tmp_path / "killed").glob("*/result.json")), "it was done before the kill"
    with start_command(tmp_path / "killed", *OPTIONS) as resumed:
        printed, _ = resumed.communicate(timeout=240)
    straight.communicate(timeout=240)
    assert straight.returncode == resumed.returncode == 0
    assert "step 5 of" not in printed, "it began anew"
    (one,), (other,) = ((tmp_path / name).glob("*=*") for name in ("straight", "killed"))
    for name in ("records.csv", "evaluations.csv", "result.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert len(read_table(one / "records.csv")) == 12


def test_a_run_killed_before_its_result_is_written_keeps_its_figures(tmp_path, monkeypatch):
    straight = run(LinearClasses(), SMALL, tmp_path / "straight", report=lambda line: None)

    def killed(folder, result):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_files, "write_result", killed)
    with pytest.raises(KeyboardInterrupt):
        run(LinearClasses(), SMALL, tmp_path / "killed", 0, report=lambda line: None)
    monkeypatch.undo()
    table = tmp_path / "killed" / "evaluations.csv"
    rows = table.read_bytes()
    resumed = run(LinearClasses(), SMALL, tmp_path / "killed", report=lambda line: None)
    assert resumed == straight and "accuracy" in resumed
    assert table.read_bytes() == rows
    assert read_result(tmp_path / "killed") == straight


def test_a_table_that_cannot_be_rewritten_is_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "records.csv"
    table = Table(path, ("step", "loss"))
    for step in (5, 10, 15):
        table.append({"step": step, "loss": 0.5})
    before, rows = path.read_bytes(), read_table(path)[:2]

    def killed(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(pathlib.Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        Table(path, ("step", "loss"), rows)
    assert path.read_bytes() == before
    monkeypatch.undo()
    Table(path, ("step", "loss"), rows).append({"step": 12})
    assert path.read_text().split() == ["step,loss", "5,0.5", "10,0.5", "12,"]


def test_a_batch_runs_all_combinations_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(plots, "pyplot", lambda: None)  # as where matplotlib is not installed
    batch = tmp_path / "batch.txt"
    batch.write_text(
        "# both baselines\n--method dense,power_sgd\n\n--method clt_k --compression-ratio 10,20\n"
    )
    arguments = [
        "simulate",
        str(TASK_FILE),
        "--batch",
        str(batch),
        "--out",
        str(tmp_path / "out"),
        "--steps=4",
        "--learners=2",
        "--record-every=2",
        "--evaluate-every=2",
        "--seed=3",
    ]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "run 4 of 4: clt_k" in printed and "pip install matplotlib" in printed
    folders = sorted((tmp_path / "out").glob("*"))
    assert len(folders) == 4 and all(f.name.endswith("seed=3") for f in folders)
    for folder in folders:
        rows = read_table(folder / "records.csv")
        assert [row["step"] for row in rows] == ["2", "4"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("already done") == 4


def test_plots_are_drawn_from_the_records(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    for method in ("clt_k", "power_sgd"):
        config = dataclasses.replace(SMALL, method=method)
        run(LinearClasses(), config, tmp_path / method, report=lambda line: None)
    assert plots.draw([tmp_path / "clt_k", tmp_path / "power_sgd"], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_diverges_says_so_and_ends(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(plots, "pyplot", lambda: None)
    options = [f"--out={tmp_path}", "--method=dense", "--learning-rate=1e30", "--steps=20"]
    assert main(["simulate", str(TASK_FILE), *options]) == 0  # that is an outcome, not a failure
    (folder,) = tmp_path.iterdir()
    result = read_result(folder)
    assert result["diverged"] and result["step"] < 20 and "accuracy" not in result
    printed = capsys.readouterr().out
    assert "finite loss" in printed and "--learning-rate" in printed


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--method=topk", "one of dense, clt_k"),
        ("--learners=257", "1 to 256"),
        ("--steps=0", "integer >= 1"),
        ("--beta=0", "a number in (0, 1]"),
        ("--learning-rate=fast", "expected a number, received 'fast'"),
        ("--momentum=0.9 --optimizer=adam", "0 with adam"),
        ("--clipnorm=0", "a number > 0"),
        ("--clipnorm=1 --clipvalue=1", "one of clipnorm, global_clipnorm, clipvalue at most"),
        ("--warmup=ramp --method=power_sgd", "dense with power_sgd, which has no ratio"),
        ("--compression-ratio=0.5", "a number >= 1"),
        ("--compression-ratio=fast", "a number >= 1"),
        ("--final-beta=late", "expected a number, received 'late'"),
        ("--seed=1.5", "--seed: expected an integer, received '1.5'"),
        ("--learners=1,2.0", "--learners: expected an integer, received '2.0'"),
        ("--save-minutes=nan", "expected a number from 0 to 1e+12, received 'nan'"),
        ("--batch=no_such_file", "received 'no_such_file'"),
        ("--out=/dev/null", "'/dev/null/clt_k-seed=0': Not a directory"),
        ("--seed=4294967296", "an integer from 0 to 2**32 - 1"),
    ],
)
def test_bad_options_are_refused(option, message, capsys, monkeypatch):
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    with pytest.raises(SystemExit) as end:
        main(["simulate", str(TASK_FILE), *option.split()])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_a_number_is_one_option_however_it_is_written():
    written = ["--learning-rate=1,1.0,1e0", "--beta=1,1.0", "--compression-ratio=25,25.0,auto"]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    configs = command._configs(parser.parse_args(["task.py", *written]))
    assert [config.name for config in configs] == [
        "clt_k-learning_rate=1.0-compression_ratio=25-seed=0",
        "clt_k-learning_rate=1.0-compression_ratio=auto-seed=0",
    ]
    assert all(isinstance(config.learning_rate, float) for config in configs)
    for changes, expected in (({"learners": 2.0}, "an integer"), ({"beta": "1"}, "a number")):
        with pytest.raises(ValueError, match=f"expected {expected}"):
            SimulationConfig(**changes)


def test_runs_of_many_options_have_file_names_of_their_own():
    options = {
        "learning_rate": 1 / 3,
        "lr_warmup": 1 / 7,
        "beta": 1 / 9,
        "final_beta": 2 / 3,
        "momentum": 1 / 7,
        "adam_beta_1": 1 / 11,
        "adam_beta_2": 1 / 13,
        "learners": 256,
        "warmup_steps": 1_234,
        "compression_ratio": 1000 / 7,
        "steps": 123_456,
    }
    configs = [SimulationConfig(**options, rank=rank, seed=7) for rank in (2, 3)]
    names = [config.name for config in configs]
    assert len(set(names)) == 2 and all(len(name) <= 200 for name in names)
    assert all(n.startswith("clt_k-learners=256-") and n.endswith("-seed=7") for n in names)


def test_a_task_file_must_be_there_and_define_a_task(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit):
        main(["simulate", str(tmp_path / "none.py")])
    assert "not a file" in capsys.readouterr().err
    path = tmp_path / "some_task.py"
    for text, message in (
        ("", "build_task"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def build_task(:", "SyntaxError: invalid syntax (line 1 of "),
        ("class build_task(int): train_size = batch = loss = evaluate = 0", "without build_model."),
        (
            "from collections import namedtuple\n"
            "def build_task(): return namedtuple('Fixed', names)(*range(1, 6))\n"
            "names = 'train_size', 'build_model', 'batch', 'loss', 'evaluate'",
            "a Fixed, which takes no attribute `task_name`",
        ),
        ("def build_task(): pass", "a NoneType without train_size, build_model, batch, loss, eval"),
    ):
        path.write_text(text)
        with pytest.raises(SystemExit):
            main(["simulate", str(path)])
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "batch.txt to have lines of options; received none"),
        ("# none\n\n", "batch.txt to have lines of options; received none"),
        ("--seed 1\n# what\n--seed x", "batch.txt:3: argument --seed: expected an integer"),
        ("--beta 0", "batch.txt:1: `beta`"),
        ("--beta '1", "batch.txt:1: No closing quotation"),
        ("--out x", "batch.txt:1: unrecognized arguments: --out x"),
    ],
)
def test_the_line_of_a_batch_that_is_wrong_is_named(text, message, tmp_path, capsys):
    batch = tmp_path / "batch.txt"
    batch.write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["simulate", str(TASK_FILE), f"--batch={batch}"])
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed and len(printed.splitlines()) == 1


def test_a_task_file_finds_itself_and_its_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "task_neighbour.py").write_text("name = 'neighbour'")
    path = tmp_path / "own_task.py"
    path.write_text(
        "import simulated_task, task_neighbour\n"
        "class OwnTask(simulated_task.LinearClasses):\n"
        "    found = __file__, task_neighbour.name\n"
        "build_task = OwnTask"
    )
    assert load_task(path).found == (str(path), "neighbour")


def test_a_loaded_task_file_is_in_the_way_of_no_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "simulated_own.py").write_text("name = 'neighbour'")
    (tmp_path / "own.py").write_text("from simulated_task import build_task")
    load_task(tmp_path / "own.py")
    assert importlib.import_module("simulated_own").name == "neighbour"


def test_a_run_of_another_task_is_neither_done_nor_gone_on_with(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(plots, "pyplot", lambda: None)
    for name in ("one", "other"):  # the same shapes
        (tmp_path / f"{name}.py").write_text("from simulated_task import build_task")

    def simulate(name):
        options = ["--learners=1", "--steps=2", f"--out={tmp_path / 'out'}"]
        return main(["simulate", str(tmp_path / f"{name}.py"), *options])

    assert simulate("one") == 0
    (folder,) = (tmp_path / "out").iterdir()
    written = json.loads((folder / "config.json").read_text())
    assert (written["task"], written["train_size"]) == (f"{tmp_path.name}/one", 2_000)
    for _ in ("done", "killed"):
        with pytest.raises(SystemExit):
            simulate("other")
        message = f"task: '{tmp_path.name}/one' there, '{tmp_path.name}/other' now"
        assert message in capsys.readouterr().err
        (folder / "result.json").unlink(missing_ok=True)
    assert simulate("one") == 0


def test_a_folder_of_other_options_is_refused(tmp_path):
    run(LinearClasses(), SMALL, tmp_path, report=lambda line: None)
    with pytest.raises(ValueError, match=r"beta: 1\.0 there, 0\.5 now"):
        run(LinearClasses(), dataclasses.replace(SMALL, beta=0.5), tmp_path)


# --- Damage --------------------------------------------------------------------------------------


def test_a_row_of_which_a_part_was_written_is_made_again(tmp_path):
    run(LinearClasses(), SMALL, tmp_path, report=lambda line: None)
    (tmp_path / "result.json").unlink()
    simulation = Simulation(LinearClasses(), SMALL)
    simulation.advance()
    run_files.save_state(tmp_path, simulation)
    with (tmp_path / "records.csv").open("a") as file:
        file.write("2,0.1")
    assert len(read_table(tmp_path / "records.csv")) == 2
    run(LinearClasses(), SMALL, tmp_path, report=lambda line: None)
    assert [row["step"] for row in read_table(tmp_path / "records.csv")] == ["2", "4"]


@pytest.mark.parametrize("name", ["records.csv", "evaluations.csv", "state.npz", "result.json"])
def test_a_full_disk_ends_a_run_that_goes_on_later(name, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    straight = run(LinearClasses(), SMALL, tmp_path / "straight", report=lambda line: None)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if name.endswith("csv"):
            append = run_files.Table.append
            patch.setattr(
                run_files.Table,
                "append",
                lambda table, row: full() if table._path.name == name else append(table, row),
            )
        else:
            write = run_files.write_whole
            patch.setattr(
                run_files,
                "write_whole",
                lambda path, content: full() if path.name == name else write(path, content),
            )
        with pytest.raises(run_files.UnusableFolder, match=r"No space left on device.*goes on"):
            run(LinearClasses(), SMALL, folder, 0, report=lambda line: None)
    assert run(LinearClasses(), SMALL, folder, 0, report=lambda line: None) == straight


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def build_task(): return 1 / 0", r"ZeroDivisionError: .* \(line 1 of \S*task.py\)"),
        ("raise OSError('no data')", r"OSError: no data \(line 1 of \S*task.py\)"),
        (TASK_OF_SIZE.format(0), "integer >= 1; received 0"),
        (TASK_OF_SIZE.format("'many'"), "integer >= 1; received 'many'"),
    ],
)
def test_a_task_that_cannot_be_built_is_one_line(source, message, tmp_path, capsys):
    path = tmp_path / "task.py"
    path.write_text(source)
    with pytest.raises(SystemExit) as end:
        main(["simulate", str(path), f"--out={tmp_path / 'out'}"])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and re.search(message, line), line
    assert not (tmp_path / "out").exists()
