"""What the tasks share: schedules, workers, flags, figures of merit; and the paper's commands."""

import importlib.util
import json
import pathlib
import shlex

import classification
import keras
import numpy as np
import pytest
import schedules
import training
from absl import flags
from hyperparameters import COMMANDS, ROOT


def values(schedule, steps):
    return [float(schedule(step)) for step in steps]


def test_noam_is_the_papers_formula():
    width, ramp_steps = 512, 4_000
    schedule = schedules.Noam((width * ramp_steps) ** -0.5, ramp_steps)
    for step in (1, 100, 4_000, 100_000):
        formula = width**-0.5 * min(step**-0.5, step * ramp_steps**-1.5)
        assert float(schedule(step - 1)) == pytest.approx(formula, rel=1e-5)


def test_drops_follow_the_ramp():
    schedule = schedules.RampThenDrops(0.8, ramp_steps=4, drops=[10, 20], factor=0.1)
    received = values(schedule, [0, 2, 4, 9, 10, 19, 20])
    np.testing.assert_allclose(received, [0, 0.4, 0.8, 0.8, 0.08, 0.08, 0.008], rtol=1e-5)
    at_once = schedules.RampThenDrops(0.8, ramp_steps=0, drops=[], factor=0.1)
    assert values(at_once, [0, 9]) == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize(
    "schedule",
    [schedules.Noam(0.01, 5), schedules.RampThenDrops(0.8, 4, [10, 20], 0.1)],
    ids=lambda schedule: type(schedule).__name__,
)
def test_schedules_are_saved_with_the_optimizer(schedule):
    saved = keras.optimizers.schedules.serialize(schedule)
    again = keras.optimizers.schedules.deserialize(saved)
    assert values(again, range(30)) == values(schedule, range(30))


def test_workers_of_one_machine_share_out_its_gpus():
    addresses = ["a:1", "b:1", "a:2", "a:3"]
    shares = [training.share_of_gpus("0123", addresses, index) for index in range(4)]
    assert shares == ["03", "0123", "1", "2"]


@pytest.mark.parametrize("sizes", [[4], [3, 1]])
def test_accuracy_and_loss_are_of_all_labels_however_they_are_batched(sizes):
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Rescaling(1.0)])
    chances = [[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1]]
    logits = np.log(chances).astype(np.float32)
    batches = np.split(logits, np.cumsum(sizes)[:-1])
    labels = np.array([0, 2, 0, 2], np.int32)
    accuracy, loss = classification.evaluate(model, batches, labels)
    assert accuracy == 0.5
    assert loss == pytest.approx(-np.log([0.5, 0.6, 0.1, 0.1]).mean(), rel=1e-5)


def set_tf_config(monkeypatch, cluster, task_type, index):
    config = {"cluster": cluster, "task": {"type": task_type, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


@pytest.mark.parametrize(
    ("task", "rank"), [(("chief", 0), 0), (("worker", 0), 1), (("worker", 1), 2)]
)
def test_a_chief_is_one_of_the_workers_and_the_first(task, rank, monkeypatch):
    set_tf_config(monkeypatch, {"worker": ["b:1", "a:2"], "chief": ["a:1"]}, *task)
    workers = training.Workers(None, *training.place_in_cluster())
    assert workers.addresses == ["a:1", "b:1", "a:2"] and workers.index == rank
    assert workers.count == 3 and workers.is_chief == (rank == 0)


def test_a_process_without_a_cluster_is_the_chief(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    workers = training.Workers(None, *training.place_in_cluster())
    assert workers.count == 1 and workers.is_chief


def test_a_broken_cluster_is_refused_in_the_packages_words(monkeypatch):
    set_tf_config(monkeypatch, {"worker": ["a:1", "a:2"]}, "worker", 5)
    with pytest.raises(ValueError, match=r"index of one of 2 tasks.*received 5.*All workers need"):
        training.start()
    monkeypatch.setenv("TF_CONFIG", "{'cluster'")
    with pytest.raises(ValueError, match="Expected TF_CONFIG to be JSON"):
        training.start()


@pytest.fixture
def train_script():
    """Imports a task's train.py, and takes its flags away again after the test."""
    before = set(flags.FLAGS)

    def load(task):
        path = ROOT / "models" / task / "train.py"
        spec = importlib.util.spec_from_file_location(f"train_{task}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)


def parsed(command, train_script, monkeypatch):
    """(the task's train.py with its flags set, number of workers) of a command."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:5] == ["python", "-m", "tf_scalecom", "run", "-n"]
    workers, script, *arguments = words[5:]
    module = train_script(pathlib.PurePath(script).parent.name)
    assert flags.FLAGS([script, *arguments]) == [script], "all arguments are flags"
    return module, int(workers)


# The paper's tables: what is trained, number of workers, global batch, compression ratio, beta.
ROWS = [
    ("cifar_resnet34", 4, 128, 92.0, 1.0),
    ("resnet18", 8, 256, "auto", 1.0),
    ("resnet50", 8, 256, "auto", 1.0),
    ("mobilenet_v2", 8, 256, "auto", 1.0),
    ("wmt14", 8, 36_000, 47.0, 1.0),
    ("librispeech", 4, 128, 400.0, 1.0),
    ("cifar_resnet34", 32, 1_024, 92.0, 0.1),
    ("resnet18", 64, 2_048, "auto", 0.1),
    ("resnet50", 64, 2_048, "auto", 0.1),
    ("mobilenet_v2", 64, 2_048, "auto", 0.1),
    ("wmt14", 64, 288_000, 47.0, 0.1),
    ("librispeech", 12, 1_536, 100.0, 0.1),
]


def test_there_is_a_command_for_each_row_of_the_papers_tables():
    assert len(COMMANDS) == len(ROWS)


@pytest.mark.parametrize(("command", "row"), list(zip(COMMANDS, ROWS, strict=False)))
def test_a_command_is_what_the_paper_ran(command, row, train_script, monkeypatch):
    trained, workers, global_batch, ratio, beta = row
    module, count = parsed(command, train_script, monkeypatch)
    settings = flags.FLAGS
    assert trained in (settings.dataset, getattr(settings, "network", None))
    assert count == workers and count * settings.batch_per_worker == global_batch
    assert settings.compression_ratio == ratio
    assert settings.beta == beta and settings.chunk_keep == 1
    assert settings.warmup == "dense"
    assert 0 < settings.warmup_steps <= 0.1 * settings.epochs * settings.steps_per_epoch

    cluster = training.Workers(None, ["host:1"] * count, index=0)
    build = getattr(module, "build_optimizer", training.sgd)
    optimizer = build(cluster)
    assert optimizer.method.get_config()["compression_ratio"] == ratio
    steps = settings.epochs * settings.steps_per_epoch
    peak = max(values(optimizer.inner_optimizer._learning_rate, range(0, steps, steps // 60)))
    standard = settings.learning_rate
    if settings.base_batch:
        times_larger = global_batch / settings.base_batch
        standard *= times_larger**0.5 if trained == "wmt14" else times_larger
    assert peak == pytest.approx(standard, rel=0.12), "as near as 60 samples are"


@pytest.mark.parametrize(
    ("task", "flag", "expected"),
    [
        ("image", "--compression_ratio=abc", r'expected a number >= 1 or "auto"; leave it out'),
        ("image", "--compression_ratio=0.5", r"expected a number >= 1.*received 0\.5"),
        ("image", "--compression_ratio=nan", "expected a number >= 1.*received nan"),
        ("image", "--beta=0", r"expected a number in \(0, 1\]; received 0\.0"),
        ("image", "--beta=nan", r"expected a number in \(0, 1\]; received nan"),
        ("image", "--chunk_keep=0", "expected an integer >= 1; received 0"),
        ("image", "--warmup_steps=-1", "expected an integer >= 0; received -1"),
        ("image", "--learning_rate=nan", "expected a finite number above 0"),
        ("image", "--learning_rate=inf", "expected a finite number above 0"),
        ("image", "--learning_rate=0", "expected a finite number above 0"),
        ("image", "--momentum=1", "expected a number from 0 to less than 1"),
        ("image", "--weight_decay=-1e-4", "expected a number from 0 to less than 1"),
        ("image", "--ramp=nan", "expected a number from 0 to less than 1"),
        ("image", "--decay_epochs=30,sixty", "expected whole numbers above 0"),
        ("image", "--steps_per_epoch=0", "0 is not a positive integer"),
        ("image", "--epochs=0", "0 is not a positive integer"),
        ("image", "--batch_per_worker=-1", "-1 is not a positive integer"),
        ("image", "--base_batch=0", "0 is not a positive integer"),
        ("image", "--seed=-1", "-1 is not an integer in the range"),
        ("speech", "--units=0", "0 is not a positive integer"),
        ("translation", "--adam_beta_1=1", "expected a number from 0 to less than 1"),
        ("translation", "--adam_beta_2=nan", "expected a number from 0 to less than 1"),
        ("translation", "--beam=0", "0 is not a positive integer"),
    ],
)
def test_a_flag_out_of_its_range_is_refused_when_parsed(task, flag, expected, train_script):
    train_script(task)
    name = flag.removeprefix("--").partition("=")[0]
    with pytest.raises(flags.IllegalFlagValueError, match=rf"{name}=(?s:.*){expected}"):
        flags.FLAGS(["train.py", flag])


@pytest.mark.parametrize(("ratio", "words"), [("auto", "auto, beta 1"), ("92.0", "92x, beta 1")])
def test_the_report_names_the_ratio(ratio, words, train_script):
    train_script("speech")
    flags.FLAGS(["train.py", f"--compression_ratio={ratio}"])
    assert training.compression_recipe().startswith(words)


def test_flags_of_a_dense_run_at_the_ends_of_their_ranges_are_taken(train_script):
    train_script("image")
    flags.FLAGS(["train.py", "--warmup_steps=0", "--momentum=0", "--ramp=0", "--decay_epochs="])
    assert flags.FLAGS.compression_ratio is None and flags.FLAGS.decay_epochs == []
