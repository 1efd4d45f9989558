"""The simulator: its reductions against the specification and real workers, its runs, its files."""

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference import scalecom_step
from simulated_task import LinearClasses

import tf_scalecom as sc
from tf_scalecom.__main__ import main
from tf_scalecom.simulate import (
    METHODS,
    Simulation,
    SimulationConfig,
    command,
    diagnostics,
    plots,
    run,
    run_files,
)
from tf_scalecom.simulate.config import RAMP_STAGES
from tf_scalecom.simulate.gradients import LearnerGradients
from tf_scalecom.simulate.run_files import Table, read_result, read_table, restore_state, save_state
from tf_scalecom.simulate.schedules import LayoutSchedule, learning_rate
from tf_scalecom.simulate.task import DataOrder, load_task

TASK_FILE = pathlib.Path(__file__).with_name("simulated_task.py")
SMALL = SimulationConfig(
    learners=4, batch_size=8, steps=20, compression_ratio=20, record_every=5, evaluate_every=10
)
COMPRESSING = tuple(method for method in METHODS if method != "dense")


@functools.cache
def recorded_gradients():
    """[step][learner][variable] of a real training."""
    simulation = Simulation(LinearClasses(), SMALL)
    recorded = []
    for _ in range(SMALL.steps):
        _, gradients = simulation.gradients()
        recorded.append([[g.numpy() for g in own] for own in gradients])
        simulation.advance()
    return recorded


def replayed(recorded, config):
    """Reduced gradients [step][variable] of the simulator, and its simulation."""
    simulation = Simulation(LinearClasses(), config)
    schedule = LayoutSchedule(config, simulation.model.trainable_variables)
    reduced = []
    for step, gradients in enumerate(recorded):
        tensors = [[tf.constant(g) for g in own] for own in gradients]
        result = simulation.method.reduce(
            tensors, schedule.layout(step), tf.constant(step, tf.int64)
        )
        reduced.append([g.numpy() for g in result.gradients])
    return reduced, simulation, schedule


@pytest.mark.parametrize("changes", [{}, {"beta": 0.3, "chunk_keep": 4}], ids=["plain", "filtered"])
def test_four_learners_agree_with_the_specification_for_20_steps(changes):
    config = dataclasses.replace(SMALL, **changes)
    recorded = recorded_gradients()
    reduced, _, schedule = replayed(recorded, config)
    layout = schedule.final
    (position,) = layout.compressed
    tensor = layout.tensors[position]
    residuals = np.zeros((4, tensor.elements), np.float32)
    for step, gradients in enumerate(recorded):
        expected, residuals, indices = scalecom_step(
            residuals, np.stack([own[position].ravel() for own in gradients]), step % 4,
            config.beta, tensor.chunk_size, tensor.chunk_keep, tensor.compression_ratio,
        )
        got = reduced[step][position].ravel()
        np.testing.assert_array_equal(np.flatnonzero(got), np.sort(indices[expected[indices] != 0]))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
        for dense in layout.dense:
            np.testing.assert_allclose(
                reduced[step][dense], sum(own[dense] for own in gradients), rtol=0, atol=1e-6
            )


def replay_on_worker(strategy, recorded, arguments):
    """What each step's exchange gives on this worker, through the optimizer."""
    learner = strategy.cluster_resolver.task_id
    with strategy.scope():
        variables = [keras.Variable(tf.zeros(g.shape)) for g in recorded[0][learner]]
        # At rate 1, from zero, the new value of a variable is the reduced gradient, negated.
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0), **arguments)
        optimizer.build(variables)

    @functools.partial(tf.function, autograph=False)
    def step(gradients):
        strategy.run(lambda own: optimizer.apply(own, variables), args=(gradients,))

    reduced = []
    for gradients in recorded:
        for variable in variables:
            variable.assign(tf.zeros(variable.shape))
        step([tf.constant(g) for g in gradients[learner]])
        reduced.append([-variable.numpy() for variable in variables])
    return reduced


def test_four_workers_and_four_learners_reduce_recorded_gradients_alike(cluster):
    config = dataclasses.replace(SMALL, beta=0.3, chunk_keep=2, warmup_steps=3)
    recorded = recorded_gradients()
    names = ("compression_ratio", "beta", "chunk_keep", "warmup_steps")
    arguments = {name: getattr(config, name) for name in names}
    simulated, _, _ = replayed(recorded, config)
    by_worker = cluster(4).run(replay_on_worker, recorded, arguments, timeout=90)
    for real in by_worker:
        for step in range(config.steps):
            for got, expected in zip(real[step], simulated[step], strict=True):
                np.testing.assert_array_equal(got != 0, expected != 0)
                np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", COMPRESSING)
def test_what_is_not_sent_is_kept(method):
    """With beta 1 all gradients so far are what was reduced and what the residuals hold."""
    config = dataclasses.replace(SMALL, method=method)
    recorded = recorded_gradients()
    reduced, simulation, _ = replayed(recorded, config)
    for place, position in enumerate(simulation.method.compressed):
        total = sum(own[position] for gradients in recorded for own in gradients)
        sent = sum(gradients[position] for gradients in reduced)
        held = sum(own[place].numpy() for own in simulation.method.residuals)
        assert np.abs(held).max() > 1e-3, "nothing was compressed"
        np.testing.assert_allclose(sent + held, total, rtol=0, atol=1e-5)


def test_the_oracle_selects_the_largest_of_the_sum():
    config = dataclasses.replace(SMALL, method="mean_top_k")
    recorded = recorded_gradients()[:1]
    reduced, _, schedule = replayed(recorded, config)
    (position,) = schedule.final.compressed
    total = sum(own[position].ravel() for own in recorded[0])
    kept = schedule.final.tensors[position].kept
    largest = np.argsort(-np.abs(total), kind="stable")[:kept]
    np.testing.assert_array_equal(
        np.flatnonzero(reduced[0][position]), np.sort(largest)
    )


def test_local_selections_are_those_of_each_learner_and_their_union_grows():
    config = dataclasses.replace(SMALL, method="local_top_k", selection="exact")
    recorded = recorded_gradients()[:1]
    reduced, _, schedule = replayed(recorded, config)
    (position,) = schedule.final.compressed
    kept = schedule.final.tensors[position].kept
    expected = np.zeros(schedule.final.tensors[position].elements, np.float32)
    for own in recorded[0]:
        flat = own[position].ravel()
        largest = np.argsort(-np.abs(flat), kind="stable")[:kept]
        expected[largest] += flat[largest]
    np.testing.assert_allclose(reduced[0][position].ravel(), expected, rtol=0, atol=1e-6)
    union = diagnostics.build_up([tf.constant(reduced[0][position])], schedule.final)
    assert 1 < union <= config.learners


def test_random_selections_keep_k_and_change_with_the_step():
    config = dataclasses.replace(SMALL, method="random_k")
    recorded = recorded_gradients()[:2]
    reduced, _, schedule = replayed(recorded, config)
    (position,) = schedule.final.compressed
    again, _, _ = replayed(recorded, config)
    first, second = (np.flatnonzero(reduced[step][position]) for step in (0, 1))
    # Gradients of a unit that is off are 0, sent or not.
    assert 0.5 * schedule.final.kept < len(first) <= schedule.final.kept
    assert len(np.intersect1d(first, second)) < 0.3 * len(first)
    np.testing.assert_array_equal(reduced[0][position], again[0][position])


def test_power_sgd_finds_a_sum_of_its_rank():
    config = dataclasses.replace(SMALL, method="power_sgd", rank=2)
    simulation = Simulation(LinearClasses(), config)
    schedule = LayoutSchedule(config, simulation.model.trainable_variables)
    rng = np.random.default_rng(0)
    shapes = [v.shape for v in simulation.model.trainable_variables]
    rank_2 = tf.constant(rng.normal(size=(40, 2)) @ rng.normal(size=(2, 60)), tf.float32)
    gradients = [[rank_2, *map(tf.zeros, shapes[1:])]] * 4
    reduced = simulation.method.reduce(gradients, schedule.layout(0), 0).gradients
    np.testing.assert_allclose(reduced[0], 4 * rank_2, rtol=0, atol=1e-4)
    np.testing.assert_allclose(simulation.method.residuals[3][0], np.zeros((40, 60)), atol=1e-4)


def weights_after(config, task=None):
    simulation = Simulation(task or LinearClasses(), config)
    for _ in range(config.steps):
        simulation.advance()
    return np.concatenate([v.numpy().ravel() for v in simulation.model.trainable_variables])


def test_four_learners_with_a_batch_of_8_are_one_with_32():
    one = dataclasses.replace(SMALL, method="dense", learners=1, batch_size=32)
    four = dataclasses.replace(SMALL, method="dense")
    np.testing.assert_allclose(weights_after(four), weights_after(one), rtol=0, atol=1e-5)


def test_momentum_of_the_learners_is_that_of_the_optimizer_when_all_is_sent():
    before = dataclasses.replace(
        SMALL, method="dense", momentum=0.9, momentum_placement="before", lr_warmup=0,
        decay="constant",
    )
    after = dataclasses.replace(before, momentum_placement="after")
    without = dataclasses.replace(before, momentum=0.0)
    np.testing.assert_allclose(weights_after(before), weights_after(after), rtol=0, atol=1e-5)
    assert np.abs(weights_after(before) - weights_after(without)).max() > 1e-2


def test_momentum_before_selection_is_cleared_where_it_was_sent():
    config = dataclasses.replace(SMALL, momentum=0.9, momentum_placement="before")
    simulation = Simulation(LinearClasses(), config)
    simulation.advance()
    velocities = [own[0].numpy().ravel() for own in simulation._velocities]
    cleared = np.all([v == 0 for v in velocities], axis=0)
    _, gradients = Simulation(LinearClasses(), config).gradients()
    was_zero = np.all([own[0].numpy().ravel() == 0 for own in gradients], axis=0)
    layout = LayoutSchedule(config, simulation.model.trainable_variables).final
    assert 0 < np.sum(cleared & ~was_zero) <= layout.kept
    assert np.sum(~cleared) > layout.kept


def test_learners_at_once_have_the_gradients_of_learners_in_turn():
    config = dataclasses.replace(SMALL, learners=19)  # more than one group, and a remainder
    simulation = Simulation(LinearClasses(), config)
    order = DataOrder(simulation.task.train_size, 19, config.batch_size, seed=0)
    batches = [simulation.task.batch(order.indices(0, i)) for i in range(19)]
    at_once, in_turn = (
        LearnerGradients(simulation.task, simulation.model, 19, vectorized=vectorized)(batches)
        for vectorized in (True, False)
    )
    assert at_once[0] == pytest.approx(in_turn[0], rel=1e-6)
    for own, expected in zip(at_once[1], in_turn[1], strict=True):
        for gradient, other in zip(own, expected, strict=True):
            np.testing.assert_allclose(gradient, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("vectorized", [True, False])
def test_the_sum_alone_is_the_sum_of_the_learners_gradients(vectorized):
    task = LinearClasses()
    model = task.build_model()
    batches = [task.batch(range(8 * i, 8 * i + 8)) for i in range(19)]
    loss, gradients = LearnerGradients(task, model, 19, vectorized=vectorized)(batches)
    summed = LearnerGradients(task, model, 19, summed=True, vectorized=vectorized)
    loss_of_sum, (sums,) = summed(batches)
    assert loss_of_sum == pytest.approx(loss, rel=1e-6)
    for total, parts in zip(sums, zip(*gradients, strict=True), strict=True):
        np.testing.assert_allclose(total, tf.add_n(list(parts)), rtol=0, atol=1e-6)


def test_models_with_state_of_their_own_train():
    task = LinearClasses(keras.layers.BatchNormalization, lambda: keras.layers.Dropout(0.2))
    config = dataclasses.replace(SMALL, steps=60, beta=0.3, learning_rate=0.3)
    simulation = Simulation(task, config)
    losses = [simulation.advance()["loss"] for _ in range(config.steps)]
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
    moving_mean = simulation.model.layers[1].moving_mean.numpy()
    assert np.abs(moving_mean).max() > 1e-2


def test_256_learners_train():
    config = dataclasses.replace(SMALL, learners=256, batch_size=2, steps=3)
    simulation = Simulation(LinearClasses(), config)
    measured = [simulation.advance(measure=True) for _ in range(config.steps)]
    assert all(np.isfinite(m["residual_cosine_distance"]) for m in measured)
    assert len(simulation.method.residuals) == 256


@pytest.mark.parametrize("learners", [2, 8])
def test_bytes_follow_the_stated_formulas(learners):
    def sent(method, **changes):
        config = dataclasses.replace(SMALL, method=method, learners=learners, **changes)
        simulation = Simulation(LinearClasses(), config)
        variables = simulation.model.trainable_variables
        return simulation.method.bytes_sent(LayoutSchedule(config, variables).layout(0))

    ring = 2 * (learners - 1) / learners
    large = 40 * 60
    small = 60 + 60 * 5 + 5
    kept = large // SMALL.compression_ratio
    flag = 4
    assert sent("dense") == pytest.approx(4 * (large + small) * ring)
    values = (4 * kept + flag + 4 * small) * ring
    assert sent("clt_k") == pytest.approx(values + kept * ring / 2)
    # An exact selection's offsets take two bytes each.
    assert sent("mean_top_k") == pytest.approx(values + 2 * kept * ring / 2)
    assert sent("random_k") == pytest.approx(values)
    assert sent("local_top_k") == pytest.approx((learners - 1) * 5 * kept + 4 * small * ring)
    assert sent("power_sgd", rank=3) == pytest.approx(4 * (3 * (40 + 60) + small) * ring)
    assert sent("power_sgd", warmup_steps=1) == sent("dense")


def test_cosine_distance_is_the_mean_over_pairs():
    rng = np.random.default_rng(0)
    residuals = rng.normal(size=(5, 300)).astype(np.float32) + 0.7
    pairs = [
        1 - u @ v / np.linalg.norm(u) / np.linalg.norm(v)
        for u, v in itertools.combinations(residuals, 2)
    ]
    halves = [[tf.Variable(m[:100]), tf.Variable(m[100:])] for m in residuals]
    assert diagnostics.cosine_distance(halves) == pytest.approx(np.mean(pairs), abs=1e-6)


def test_a_leader_that_chose_as_the_sum_would_is_measured_so():
    """All learners alike: the leader's exact choice is the true one, and the bound is tight."""
    config = dataclasses.replace(SMALL, selection="exact")
    simulation = Simulation(LinearClasses(), config)
    same = np.arange(config.batch_size)
    simulation._order.indices = lambda step, learner: same
    measured = simulation.advance(measure=True)
    assert measured["hamming_distance"] == 0
    assert measured["contraction"] == pytest.approx(measured["gamma0"], rel=1e-5)
    assert measured["contraction_bound"] == pytest.approx(measured["gamma0"], rel=1e-5)
    assert measured["residual_cosine_distance"] == pytest.approx(0, abs=1e-5)


def test_hamming_distance_and_bound_by_hand():
    """Two learners, four chunks' worth of one variable; the leader knows half of the truth."""
    x0, x1 = np.zeros(1_000, np.float32), np.zeros(1_000, np.float32)
    x0[[0, 1]] = 3, 2  # the leader's largest
    x1[[0, 2]] = 3, 4  # so of the sum: 0 (6) and 2 (4), then 1 (2)
    plan = dataclasses.replace(SMALL, selection="exact", compression_ratio=500)
    layout = LayoutSchedule(plan, [keras.Variable(tf.zeros(1_000))]).final
    quality = diagnostics.SelectionQuality([(1_000,)])
    measured = quality.measure(
        [tf.constant(x0 + x1)], [tf.constant(x0)], [tf.Variable(tf.zeros(1_000))], layout, layout
    )
    gamma0 = 4 / (36 + 16 + 4)
    assert measured["hamming_distance"] == 0.5
    assert measured["gamma0"] == pytest.approx(gamma0)
    assert measured["contraction_bound"] == pytest.approx(0.5 + 0.5 * gamma0)


def test_an_epoch_shows_every_example_once():
    order = DataOrder(train_size=120, learners=3, batch_size=8, seed=1)
    seen = [order.indices(step, learner) for step in range(10) for learner in range(3)]
    epochs = np.concatenate(seen).reshape(2, 120)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(120))
    assert (epochs[0] != epochs[1]).any()
    # Out of turn, as after a restart, and in the middle of a batch that two epochs share.
    other = DataOrder(train_size=100, learners=3, batch_size=8, seed=1)
    whole = np.concatenate([other.indices(s, i) for s in range(9) for i in range(3)])[:200]
    np.testing.assert_array_equal(np.sort(whole[100:]), np.arange(100))
    np.testing.assert_array_equal(other.indices(4, 0), whole[96:104])


def test_schedules():
    config = dataclasses.replace(
        SMALL, steps=100, learning_rate=1.0, lr_warmup=0.1, warmup_steps=10, ratio_ramp=50,
        compression_ratio=128, initial_ratio=4, beta=0.2, final_beta=1.0,
    )
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == 1.0 and rates[-1] < 0.001
    linear = dataclasses.replace(config, decay="linear")
    assert learning_rate(linear, 55) == pytest.approx(0.5)
    schedule = LayoutSchedule(config, [keras.Variable(tf.zeros((50, 80)))])
    ratios = [schedule.layout(step).tensors[0].compression_ratio for step in range(100)]
    assert set(ratios[:10]) == {1.0}
    assert len(set(ratios[10:60])) == RAMP_STAGES and ratios[10] == 4.0
    assert ratios[10:] == sorted(ratios[10:]) and set(ratios[60:]) == {128.0}
    betas = [schedule.layout(step).beta for step in range(10, 100)]
    assert betas[0] == 0.2 and betas[-1] == 1.0 and betas == sorted(betas)


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_simulation_goes_on_alike(method, tmp_path):
    config = dataclasses.replace(SMALL, method=method, beta=0.5, momentum=0.5)
    if method in ("clt_k", "local_top_k"):
        config = dataclasses.replace(config, momentum_placement="before")
    straight = Simulation(LinearClasses(), config)
    for _ in range(4):
        straight.advance()
    save_state(tmp_path, straight)
    restored = Simulation(LinearClasses(), config)
    restore_state(tmp_path, restored)
    for _ in range(4):
        expected, got = straight.advance(measure=True), restored.advance(measure=True)
        assert got == expected
    # The paper's bound is of the leader's choice: empty where something else is sent.
    assert ("contraction_bound" in got) == (method in ("clt_k", "mean_top_k"))


OPTIONS = [
    "--learners=4", "--batch-size=8", "--compression-ratio=20", "--beta=0.3", "--momentum=0.5",
    "--momentum-placement=before", "--steps=60", "--record-every=5", "--evaluate-every=10",
]


def start_command(out, *options):
    program = [sys.executable, "-m", "tf_scalecom", "simulate", str(TASK_FILE), f"--out={out}"]
    return subprocess.Popen([*program, *options], stdout=subprocess.PIPE, text=True)


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
    config = dataclasses.replace(SMALL, steps=4, evaluate_every=2)
    straight = run(LinearClasses(), config, tmp_path / "straight", report=lambda line: None)

    def killed(folder, result):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_files, "write_result", killed)
    with pytest.raises(KeyboardInterrupt):
        run(LinearClasses(), config, tmp_path / "killed", 0, report=lambda line: None)
    monkeypatch.undo()
    table = tmp_path / "killed" / "evaluations.csv"
    rows = table.read_bytes()
    resumed = run(LinearClasses(), config, tmp_path / "killed", report=lambda line: None)
    assert resumed == straight and "accuracy" in resumed
    assert table.read_bytes() == rows
    assert read_result(tmp_path / "killed") == straight


def test_a_table_that_cannot_be_rewritten_is_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "records.csv"
    table = Table(path, ("step", "loss"), last_step=0)
    for step in (5, 10, 15):
        table.append({"step": step, "loss": 0.5})
    before = path.read_bytes()

    def killed(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(pathlib.Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        Table(path, ("step", "loss"), last_step=10)
    assert path.read_bytes() == before
    monkeypatch.undo()
    Table(path, ("step", "loss"), last_step=10).append({"step": 12})
    assert path.read_text().split() == ["step,loss", "5,0.5", "10,0.5", "12,"]


def test_a_batch_runs_all_combinations_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(plots, "pyplot", lambda: None)  # as where matplotlib is not installed
    batch = tmp_path / "batch.txt"
    batch.write_text(
        "# both baselines\n--method dense,power_sgd\n\n--method clt_k --compression-ratio 10,20\n"
    )
    arguments = [
        "simulate", str(TASK_FILE), "--batch", str(batch), "--out", str(tmp_path / "out"),
        "--steps=4", "--learners=2", "--record-every=2", "--evaluate-every=2", "--seed=3",
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
        ("--compression-ratio=0.5", "a number >= 1"),
        ("--compression-ratio=fast", "a number >= 1"),
        ("--final-beta=late", "expected a number, received 'late'"),
        ("--seed=1.5", "--seed: expected an integer, received '1.5'"),
        ("--learners=1,2.0", "--learners: expected an integer, received '2.0'"),
        ("--save-minutes=nan", "expected a number, 0 or more, received 'nan'"),
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
    options = {"learning_rate": 1 / 3, "lr_warmup": 1 / 7, "beta": 1 / 9, "final_beta": 2 / 3,
               "momentum": 1 / 7, "adam_beta_1": 1 / 11, "adam_beta_2": 1 / 13, "learners": 256,
               "initial_ratio": 22 / 7, "compression_ratio": 1000 / 7, "steps": 123_456}
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
        ("def build_task(:", "SyntaxError: invalid syntax (some_task.py, line 1)"),
        ("class build_task(int): train_size = batch = loss = evaluate = 0", "without build_model."),
        (
            "from collections import namedtuple\n"
            "def build_task(): return namedtuple('Fixed', names)(*names)\n"
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
    assert message in capsys.readouterr().err


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
    config = dataclasses.replace(SMALL, steps=2)
    run(LinearClasses(), config, tmp_path, report=lambda line: None)
    with pytest.raises(ValueError, match=r"beta: 1\.0 there, 0\.5 now"):
        run(LinearClasses(), dataclasses.replace(config, beta=0.5), tmp_path)
