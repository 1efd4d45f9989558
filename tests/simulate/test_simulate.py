"""The simulator: its reductions against the specification and real workers, what it measures."""

import dataclasses
import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference import (
    adam_step,
    collected,
    factored,
    largest_blocks,
    led_by_all,
    mixed,
    scalecom_step,
)
from simulated_task import LinearClasses

import tf_scalecom as sc
from tf_scalecom.simulate import METHODS, Simulation, SimulationConfig, diagnostics
from tf_scalecom.simulate.gradients import LearnerGradients
from tf_scalecom.simulate.run_files import restore_state, save_state
from tf_scalecom.simulate.schedules import PlanSchedule, learning_rate
from tf_scalecom.simulate.task import DataOrder
from tf_scalecom.wire.layout import Layout, tensor_layout

SMALL = SimulationConfig(
    learners=4, batch_size=8, steps=20, compression_ratio=20, record_every=5, evaluate_every=10
)


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


def schedule_of(config, variables):
    return PlanSchedule(config, config.build_method(), variables)


def replayed(recorded, config):
    """Reduced gradients [step][variable] of the simulator, and its simulation."""
    simulation = Simulation(LinearClasses(), config)
    schedule = schedule_of(config, simulation.model.trainable_variables)
    reduced = []
    for step, gradients in enumerate(recorded):
        tensors = [[tf.constant(g) for g in own] for own in gradients]
        result = simulation.reduce(tensors, schedule.plan(step), tf.constant(step, tf.int64))
        reduced.append([g.numpy() for g in result.gradients])
    return reduced, simulation, schedule


def leader_of(method, step, chunk_size):
    """What the specification takes for a leader."""
    if method == "mean_top_k":
        return lambda compensated: compensated.sum(axis=0)
    if method == "shares_top_k":
        return lambda compensated: led_by_all(compensated, step, chunk_size)
    if method == "owners_top_k":
        return lambda compensated: led_by_all(compensated, 0, chunk_size)
    return step % 4


@pytest.mark.parametrize(
    "changes",
    [
        {"picture_every": 3},
        {"beta": 0.3, "chunk_keep": 4, "picture": "large_signs"},
        {"picture": "largest", "picture_every": 2},
    ],
    ids=["plain", "filtered", "largest"],
)
@pytest.mark.parametrize(
    "method", ["clt_k", "mean_top_k", "shares_top_k", "mixed_top_k", "owners_top_k"]
)
def test_four_learners_agree_with_the_specification_for_20_steps(method, changes):
    config = dataclasses.replace(SMALL, method=method, **changes)
    recorded = recorded_gradients()
    reduced, _, schedule = replayed(recorded, config)
    layout = schedule.final
    (position,) = layout.compressed
    tensor = layout.tensors[position]
    residuals = np.zeros((4, tensor.elements), np.float32)
    for step, gradients in enumerate(recorded):
        own_gradients = np.stack([own[position].ravel() for own in gradients])
        if method == "mixed_top_k" and step % config.picture_every == 0:
            own_gradients = mixed(residuals, own_gradients, tensor.chunk_size, config.picture)
        if method == "owners_top_k":
            own_gradients = -residuals + collected(
                residuals,
                own_gradients,
                tensor.chunk_size,
                tensor.chunk_keep,
                tensor.compression_ratio,
            )
        expected, residuals, indices = scalecom_step(
            residuals,
            own_gradients,
            leader_of(method, step, tensor.chunk_size),
            config.beta,
            tensor.chunk_size,
            tensor.chunk_keep,
            tensor.compression_ratio,
        )
        got = reduced[step][position].ravel()
        np.testing.assert_array_equal(np.flatnonzero(got), np.sort(indices[expected[indices] != 0]))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
        for dense in layout.dense:
            np.testing.assert_allclose(
                reduced[step][dense], sum(own[dense] for own in gradients), rtol=0, atol=1e-6
            )


def test_a_sketch_agrees_with_the_specification_for_20_steps():
    config = dataclasses.replace(SMALL, method="sketch_top_k", chunk_keep=7)
    recorded = recorded_gradients()
    reduced, _, schedule = replayed(recorded, config)
    (position,) = schedule.final.compressed
    tensor = schedule.final.tensors[position]
    assert tensor.elements % tensor.chunk_size
    residuals = np.zeros((4, tensor.elements), np.float32)
    for step, gradients in enumerate(recorded):
        drawn = tf.random.stateless_uniform(tensor.shape, [config.seed, step * 2**16 + position])
        signs = np.where(drawn.numpy().ravel() < 0.5, -1, 1)
        expected, residuals, _ = scalecom_step(
            residuals,
            np.stack([own[position].ravel() for own in gradients]),
            functools.partial(largest_blocks, signs=signs, size=tensor.chunk_keep),
            config.beta,
            tensor.chunk_size,
            tensor.chunk_keep,
            tensor.compression_ratio,
        )
        np.testing.assert_allclose(reduced[step][position].ravel(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("limit", [None, 2.0])
@pytest.mark.parametrize("method", ["factored_moment_top_k", "sent_moment_top_k"])
def test_second_moments_agree_with_the_specification_for_20_steps(method, limit):
    beta_2 = 0.9
    config = dataclasses.replace(SMALL, method=method, adam_beta_2=beta_2, step_limit=limit)
    recorded = recorded_gradients()
    reduced, _, schedule = replayed(recorded, config)
    (position,) = schedule.final.compressed
    tensor = schedule.final.tensors[position]
    residuals, waiting = np.zeros((2, 4, tensor.elements), np.float32)
    moment, age = np.zeros((2, tensor.elements), np.float32)
    factors = np.zeros(tensor.shape[0]), np.zeros(tensor.shape[1])
    of_dense = [0.0] * len(schedule.final.tensors)
    limited = False
    for step, gradients in enumerate(recorded):
        own = np.stack([own[position].ravel() for own in gradients])
        sums, residuals, indices = scalecom_step(
            residuals, own, step % 4, 1.0, tensor.chunk_size, tensor.chunk_keep,
            tensor.compression_ratio,
        )  # fmt: skip
        if method == "factored_moment_top_k":
            squares = np.square(own).sum(axis=0)
            factors, second_moment = factored(squares, tensor.shape, factors, beta_2)
        else:
            waiting, age = waiting + np.square(own), age + 1
            now = beta_2 ** age[indices] * moment[indices]
            moment[indices] = now + (1 - beta_2) * waiting[:, indices].sum(axis=0)
            waiting[:, indices], age[indices] = 0, 0
            second_moment = moment
        expected, beyond = adam_step(sums, second_moment, beta_2, step, limit or np.inf)
        residuals += beyond.astype(np.float32) / 4
        limited |= bool(np.any(beyond))
        np.testing.assert_allclose(reduced[step][position].ravel(), expected, rtol=2e-5, atol=1e-5)
        for dense in schedule.final.dense:
            total = sum(own[dense] for own in gradients)
            of_dense[dense] = beta_2 * of_dense[dense] + (1 - beta_2) * np.square(total)
            expected, _ = adam_step(total, of_dense[dense], beta_2, step, np.inf)
            np.testing.assert_allclose(reduced[step][dense], expected, rtol=2e-5, atol=1e-5)
    assert limited == (limit is not None)


def gradients_of(weights, points, labels):
    """Of the mean loss of `LinearClasses`, in NumPy."""
    kernel, bias, last_kernel, last_bias = weights
    hidden = points @ kernel + bias
    active = np.maximum(hidden, 0)
    logits = active @ last_kernel + last_bias
    likely = np.exp(logits - logits.max(axis=1, keepdims=True))
    wrong = likely / likely.sum(axis=1, keepdims=True)
    wrong[np.arange(len(labels)), labels] -= 1
    wrong /= len(labels)
    back = wrong @ last_kernel.T * (hidden > 0)
    return [points.T @ back, back.sum(axis=0), active.T @ wrong, wrong.sum(axis=0)]


@pytest.mark.parametrize("progress", ["dropped", "kept"])
def test_local_steps_agree_with_the_specification_for_20_exchanges(progress):
    config = dataclasses.replace(
        SMALL, steps=40, local_steps=2, momentum=0.9, record_every=10, local_progress=progress
    )
    task = LinearClasses()
    simulation = Simulation(task, config)
    weights = [v.numpy() for v in simulation.model.trainable_variables]
    order = DataOrder(task.train_size, 4, config.batch_size, config.seed)
    (position,) = simulation.plan.compressed
    tensor = simulation.plan.tensors[position]
    residuals = np.zeros((4, tensor.elements), np.float32)
    velocities = [[np.zeros_like(w) for w in weights] for _ in range(4)]
    for exchange in range(20):
        progresses = []
        for learner in range(4):
            own = [w.copy() for w in weights]
            if progress == "kept":
                own[position] -= 4 * residuals[learner].reshape(tensor.shape)
            start = [w.copy() for w in own]
            for step in (2 * exchange, 2 * exchange + 1):
                batch = task.batch(order.indices(step, learner))
                rate = learning_rate(config, step)
                for i, gradient in enumerate(gradients_of(own, *batch)):
                    velocities[learner][i] = 0.9 * velocities[learner][i] - rate * gradient
                    own[i] += velocities[learner][i]
            progresses.append([(s - w) / 4 for s, w in zip(start, own, strict=True)])
        sums = [sum(parts) for parts in zip(*progresses, strict=True)]
        sent, residuals, _ = scalecom_step(
            residuals,
            np.stack([own[position].ravel() for own in progresses]),
            exchange % 4,
            1.0,
            tensor.chunk_size,
            tensor.chunk_keep,
            tensor.compression_ratio,
        )
        sums[position] = sent.reshape(tensor.shape)
        weights = [w - s for w, s in zip(weights, sums, strict=True)]
        simulation.advance()
        for got, expected in zip(simulation.model.trainable_variables, weights, strict=True):
            np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-5)
    assert simulation.step == 40


def replay_on_worker(strategy, recorded, methods, warmup_steps, clipping):
    """What each step's exchange gives on this worker, through the optimizer, by each method."""
    learner = strategy.cluster_resolver.task_id

    def replay(name, arguments):
        with strategy.scope():
            variables = [keras.Variable(tf.zeros(g.shape)) for g in recorded[0][learner]]
            # At rate 1, from zero, the new value of a variable is the reduced gradient, negated.
            optimizer = sc.CompressedOptimizer(
                keras.optimizers.SGD(1.0, **clipping),
                getattr(sc.methods, name)(**arguments),
                warmup_steps=warmup_steps,
            )
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

    return [replay(*method) for method in methods]


def assert_workers_and_learners_reduce_alike(cluster, configs, clipping):
    """`configs`: (name of a method, its arguments, simulation)."""
    (learners,) = {config.learners for *_, config in configs}
    (warmup_steps,) = {config.warmup_steps for *_, config in configs}
    recorded = [gradients[:learners] for gradients in recorded_gradients()]
    by_worker = cluster(learners).run(
        replay_on_worker,
        recorded,
        [(name, arguments) for name, arguments, _ in configs],
        warmup_steps,
        clipping,
        timeout=180,
    )
    for i, (*_, config) in enumerate(configs):
        simulated, _, _ = replayed(recorded, config)
        for worker in by_worker:
            for got_by_step, expected_by_step in zip(worker[i], simulated, strict=True):
                for got, expected in zip(got_by_step, expected_by_step, strict=True):
                    np.testing.assert_array_equal(got != 0, expected != 0)
                    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("clipping", [{}, {"clipnorm": 0.1}], ids=["plain", "clipped"])
def test_four_workers_and_four_learners_reduce_recorded_gradients_alike(cluster, clipping):
    arguments = {"compression_ratio": SMALL.compression_ratio, "beta": 0.3, "chunk_keep": 2}
    config = dataclasses.replace(SMALL, **arguments, warmup_steps=3, **clipping)
    assert_workers_and_learners_reduce_alike(cluster, [("CltK", arguments, config)], clipping)


def test_three_workers_and_three_learners_reduce_alike_by_other_methods(cluster):
    ratio = {"compression_ratio": SMALL.compression_ratio}
    filtered = {**ratio, "beta": 0.3, "chunk_keep": 2, "value_dtype": "bfloat16"}
    narrow = {**ratio, "value_dtype": "int8"}
    small = dataclasses.replace(SMALL, learners=3, warmup_steps=2)
    configs = [
        ("SharesTopK", ratio, dataclasses.replace(small, method="shares_top_k")),
        ("OwnersTopK", ratio, dataclasses.replace(small, method="owners_top_k")),
        ("OwnersTopK", filtered, dataclasses.replace(small, method="owners_top_k", **filtered)),
        ("OwnersTopK", narrow, dataclasses.replace(small, method="owners_top_k", **narrow)),
        ("PowerSGD", {"rank": 2}, dataclasses.replace(small, method="power_sgd", rank=2)),
    ]
    assert_workers_and_learners_reduce_alike(cluster, configs, {})


@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_sent_is_kept(method):
    """With beta 1 all gradients so far are what was reduced and what the residuals hold."""
    config = dataclasses.replace(SMALL, method=method)
    recorded = recorded_gradients()
    reduced, simulation, _ = replayed(recorded, config)
    if not all(simulation.residuals) or not simulation.method.conserves:
        pytest.skip(f"{method} keeps nothing, or sends steps")
    for place, position in enumerate(simulation.plan.compressed):
        total = sum(own[position] for gradients in recorded for own in gradients)
        sent = sum(gradients[position] for gradients in reduced)
        held = sum(own[place].numpy() for own in simulation.residuals)
        assert held.any()
        np.testing.assert_allclose(sent + held, total, rtol=0, atol=1e-5)


def test_the_oracle_selects_the_largest_of_the_sum():
    config = dataclasses.replace(SMALL, method="mean_top_k", selection="exact")
    recorded = recorded_gradients()[:1]
    reduced, _, schedule = replayed(recorded, config)
    (position,) = schedule.final.compressed
    total = sum(own[position].ravel() for own in recorded[0])
    kept = schedule.final.tensors[position].kept
    largest = np.argsort(-np.abs(total), kind="stable")[:kept]
    np.testing.assert_array_equal(np.flatnonzero(reduced[0][position]), np.sort(largest))


def test_the_oracle_catches_all_of_the_sum_a_leader_some_and_chance_less():
    def caught(method):
        simulation = Simulation(LinearClasses(), dataclasses.replace(SMALL, method=method))
        return [simulation.advance(measure=True)["caught"] for _ in range(5)]

    assert caught("mean_top_k") == pytest.approx([1.0] * 5)
    led, by_chance = caught("clt_k"), caught("random_k")
    assert all(0 < less < some < 1 for less, some in zip(by_chance, led, strict=True))


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
    schedule = schedule_of(config, simulation.model.trainable_variables)
    rng = np.random.default_rng(0)
    shapes = [v.shape for v in simulation.model.trainable_variables]
    rank_2 = tf.constant(rng.normal(size=(40, 2)) @ rng.normal(size=(2, 60)), tf.float32)
    gradients = [[rank_2, *map(tf.zeros, shapes[1:])]] * 4
    reduced = simulation.reduce(gradients, schedule.plan(0), tf.constant(0)).gradients
    np.testing.assert_allclose(reduced[0], 4 * rank_2, rtol=0, atol=1e-4)
    np.testing.assert_allclose(simulation.residuals[3][0], np.zeros((40, 60)), atol=1e-4)


def weights_after(config, task=None, steps=None):
    simulation = Simulation(task or LinearClasses(), config)
    for _ in range(steps or config.steps):
        simulation.advance()
    return np.concatenate([v.numpy().ravel() for v in simulation.model.trainable_variables])


def test_four_learners_with_a_batch_of_8_are_one_with_32():
    one = dataclasses.replace(SMALL, method="dense", learners=1, batch_size=32)
    four = dataclasses.replace(SMALL, method="dense")
    np.testing.assert_allclose(weights_after(four), weights_after(one), rtol=0, atol=1e-5)


def test_momentum_of_the_learners_is_that_of_the_optimizer_when_all_is_sent():
    before = dataclasses.replace(
        SMALL,
        method="dense",
        momentum=0.9,
        momentum_placement="before",
        lr_warmup=0,
        decay="constant",
    )
    after = dataclasses.replace(before, momentum_placement="after")
    without = dataclasses.replace(before, momentum=0.0)
    np.testing.assert_allclose(weights_after(before), weights_after(after), rtol=0, atol=1e-5)
    assert np.abs(weights_after(before) - weights_after(without)).max() > 1e-2


def test_gradients_that_come_late_are_those_of_the_weights_of_then():
    config = dataclasses.replace(SMALL, method="dense", lr_warmup=0, decay="constant")
    late = dataclasses.replace(config, delay=2, steps=3)
    on_time = dataclasses.replace(config, steps=1)
    np.testing.assert_array_equal(weights_after(late), weights_after(on_time))
    waiting = weights_after(late, steps=2)
    assert np.abs(weights_after(on_time) - waiting).max() > 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_momentum_before_selection_is_cleared_where_it_was_sent(optimizer):
    config = dataclasses.replace(
        SMALL, momentum=0.9, momentum_placement="before", optimizer=optimizer
    )
    simulation = Simulation(LinearClasses(), config)
    simulation.advance()
    velocities = [own[0].numpy().ravel() for own in simulation._velocities]
    cleared = np.all([v == 0 for v in velocities], axis=0)
    _, gradients = Simulation(LinearClasses(), config).gradients()
    was_zero = np.all([own[0].numpy().ravel() == 0 for own in gradients], axis=0)
    layout = schedule_of(config, simulation.model.trainable_variables).final
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


@pytest.mark.slow
def test_256_learners_train():
    config = dataclasses.replace(SMALL, learners=256, batch_size=2, steps=3)
    simulation = Simulation(LinearClasses(), config)
    measured = [simulation.advance(measure=True) for _ in range(config.steps)]
    assert all(np.isfinite(m["residual_cosine_distance"]) for m in measured)
    assert len(simulation.residuals) == 256


@pytest.mark.parametrize("learners", [2, 8])
def test_bytes_follow_the_stated_formulas(learners):
    def sent(method, **changes):
        config = dataclasses.replace(SMALL, method=method, learners=learners, **changes)
        simulation = Simulation(LinearClasses(), config)
        variables = simulation.model.trainable_variables
        return simulation.bytes_sent(schedule_of(config, variables).plan(0))

    ring = 2 * (learners - 1) / learners
    large = 40 * 60
    small = 60 + 60 * 5 + 5
    kept = large // SMALL.compression_ratio
    flag = 4
    assert sent("dense") == pytest.approx(4 * (large + small) * ring)
    values = (4 * kept + flag + 4 * small) * ring
    assert sent("clt_k") == pytest.approx(values + kept * ring / 2)
    assert sent("mean_top_k") == sent("clt_k")
    share = -(-kept // learners)
    padding = (learners - 1) * (-share % 4 + learners * share - kept)
    assert sent("shares_top_k") == pytest.approx(sent("clt_k") + padding)
    message = 4 * (-(-share // 4) + -(-share // 2))
    handed = (learners - 1) * message
    assert sent("owners_top_k") == pytest.approx(sent("shares_top_k") + handed)
    pictures = (large / 8 + 2 * large / SMALL.compression_ratio) * (learners - 1)
    assert sent("mixed_top_k", picture_every=4) == pytest.approx(sent("clt_k") + pictures / 4)
    assert sent("mixed_top_k", picture_every=1, picture="large_signs") == pytest.approx(
        sent("clt_k") + pictures + large * (1 / 5 - 1 / 8) * (learners - 1)
    )
    run = 2 * -(-(kept + 1) // (2 * learners))  # whole words for each learner
    assert sent("clt_k", value_dtype="bfloat16") == pytest.approx(
        2 * learners * run * ring + 4 * small * ring + kept * ring / 2
    )
    factors = 4 * (40 + 60) * ring
    assert sent("factored_moment_top_k") == pytest.approx(sent("clt_k") + factors)
    assert sent("sent_moment_top_k") == pytest.approx(sent("clt_k") + 4 * kept * ring)
    sketched = sent("sketch_top_k", chunk_keep=8) - 2 * large / 8 * ring
    assert sketched == pytest.approx(sent("random_k", chunk_keep=8))
    # An exact selection's offsets take two bytes each.
    exact = sent("mean_top_k", selection="exact")
    assert exact == pytest.approx(values + 2 * kept * ring / 2)
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
    assert measured["caught"] == measured["caught_estimate"] == pytest.approx(1)


def test_what_is_caught_is_estimated_by_one_learners_share():
    config = dataclasses.replace(SMALL, learners=8, steps=60, momentum=0.0)
    simulation = Simulation(LinearClasses(), config)
    measured = [simulation.advance(measure=True) for _ in range(config.steps)]
    caught, estimate = (
        np.mean([m[name] for m in measured[20:]]) for name in ("caught", "caught_estimate")
    )
    assert estimate == pytest.approx(caught, rel=0.25) and estimate < 0.9


def test_of_nothing_nothing_is_left():
    zeros = tf.zeros(1_000)
    assert diagnostics.contraction([zeros], [zeros]) == 0
    layout = Layout((tensor_layout("w", (1_000,), "float32", 100),))
    exact = Layout((tensor_layout("w", (1_000,), "float32", 100, "exact"),))
    measured = diagnostics.SelectionQuality([(1_000,)]).measure(
        [zeros], [zeros], [tf.Variable(zeros)], layout, exact
    )
    assert measured["gamma0"] == measured["contraction_bound"] == 0


def test_hamming_distance_and_bound_by_hand():
    """Two learners, four chunks' worth of one variable; the leader knows half of the truth."""
    x0, x1 = np.zeros(1_000, np.float32), np.zeros(1_000, np.float32)
    x0[[0, 1]] = 3, 2  # the leader's largest
    x1[[0, 2]] = 3, 4  # so of the sum: 0 (6) and 2 (4), then 1 (2)
    plan = dataclasses.replace(SMALL, selection="exact", compression_ratio=500)
    layout = schedule_of(plan, [keras.Variable(tf.zeros(1_000))]).final
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
        SMALL,
        steps=100,
        learning_rate=1.0,
        lr_warmup=0.1,
        warmup_steps=50,
        compression_ratio=128,
        beta=0.2,
        final_beta=1.0,
    )
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == 1.0 and rates[-1] < 0.001
    linear = dataclasses.replace(config, decay="linear")
    assert learning_rate(linear, 55) == pytest.approx(0.5)

    def planned(config):
        schedule = schedule_of(config, [keras.Variable(tf.zeros((50, 80)))])
        layouts = [schedule.plan(step) for step in range(100)]
        exact = [schedule.exact_plan(step).tensors[0].kept for step in range(100)]
        kept = [layout.tensors[0].kept for layout in layouts]
        np.testing.assert_allclose(exact, kept, atol=1)
        return kept, [layout.beta for layout in layouts]

    kept, betas = planned(config)
    assert kept == [4_000] * 50 + [32] * 50
    assert betas[:51] == [0.2] * 51 and betas[-1] == 1.0 and betas == sorted(betas)
    # The ratio doubles from stage to stage.
    kept, _ = planned(dataclasses.replace(config, warmup="ramp"))
    assert kept == [k for k in (1_000, 500, 250, 125, 63) for _ in range(10)] + [32] * 50


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_simulation_goes_on_alike(method, tmp_path):
    config = dataclasses.replace(SMALL, method=method, beta=0.5, momentum=0.5, delay=3)
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
