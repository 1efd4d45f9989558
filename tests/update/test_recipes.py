"""`recipe` and the warning of what it changes."""

import keras
import numpy as np
import pytest
from local_strategies import make_strategy
from logged_warnings import warnings_logged

import tf_scalecom as sc

SGD, ADAM = keras.optimizers.SGD, keras.optimizers.Adam


@keras.saving.register_keras_serializable()
def tenth():
    """A learning rate that is computed."""
    return 0.1


def built(optimizer):
    """The lines logged as an optimizer is built for a compressible variable and a small one."""
    variables = [keras.Variable(np.zeros(shape, np.float32)) for shape in [(64, 64), (10,)]]
    with warnings_logged() as lines:
        optimizer.build(variables)
    return lines


def test_momentum_becomes_half_of_the_rate_that_it_was_worth(capfd):
    given = SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01, clipnorm=1.0)
    optimizer = sc.recipe(given, steps=1000)
    inner = optimizer.inner_optimizer
    assert (inner.momentum, inner.nesterov, inner.clipnorm) == (0, False, 1.0)
    assert float(inner.learning_rate.numpy()) == pytest.approx(0.5)
    # Keras decays by rate * weight_decay in a step.
    assert inner.weight_decay * 0.5 == pytest.approx(0.01 * 0.1)
    assert optimizer.warmup_steps == 0
    assert given.momentum == 0.9
    assert "momentum: 0.9 -> 0, " in capfd.readouterr().out


def test_a_schedule_is_scaled_and_saved(tmp_path):
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 100)
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(40)])
    model.compile(sc.recipe(SGD(schedule, momentum=0.9), steps=100), loss="mse")
    model.fit(np.ones((4, 40)), np.ones((4, 40)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").optimizer
    for optimizer in (model.optimizer, loaded):
        assert float(optimizer.learning_rate) == pytest.approx(5 * float(schedule(1)))


@pytest.mark.parametrize("optimizer", ["adam", ADAM(beta_2=0.98), keras.optimizers.AdamW()])
def test_adam_keeps_no_mean_and_has_a_ramp(optimizer, capfd):
    optimizer = sc.recipe(optimizer, steps=1001, compression_ratio=50)
    inner = optimizer.inner_optimizer
    assert (inner.beta_1, inner.beta_2) == (0, 0.999)
    assert (optimizer.warmup_steps, optimizer.warmup) == (201, "ramp")
    assert optimizer.get_config()["compression_ratio"] == 50
    assert "beta_1: 0.9 -> 0" in capfd.readouterr().out


def test_arguments_come_first():
    optimizer = sc.recipe(
        ADAM(), steps=np.int64(100), warmup_steps=7, warmup="dense", exclude="bias"
    )
    assert (optimizer.warmup_steps, optimizer.warmup) == (7, "dense")


def test_a_method_takes_the_leaders_place():
    method = sc.methods.OwnersTopK(92, value_dtype="bfloat16")
    optimizer = sc.recipe("adam", steps=1000, method=method)
    assert optimizer.method is method
    assert optimizer.inner_optimizer.beta_1 == 0
    assert (optimizer.warmup, optimizer.warmup_steps) == ("ramp", 200)


def test_what_has_no_momentum_is_left_alone(capfd):
    given = SGD(0.3)
    assert sc.recipe(given, steps=10).inner_optimizer is given
    assert "SGD: nothing to change" in capfd.readouterr().out


@pytest.mark.parametrize(
    "optimizer, steps, message",
    [
        (ADAM(), 0, "expected steps as an integer >= 1; received 0"),
        (ADAM(), 10.0, "received 10.0"),
        (ADAM(), True, "received True"),
        (keras.optimizers.Lion(), 10, "can do without momentum; received Lion"),
        (keras.optimizers.Muon(), 10, "received Muon"),
        (SGD(tenth, momentum=0.9), 10, "a number or a LearningRateSchedule"),
        ("adamm", 10, "adamm"),
        (keras.optimizers.LossScaleOptimizer(ADAM()), 10, "the other way round"),
        (3, 10, "received 3"),
    ],
)
def test_what_it_refuses(optimizer, steps, message):
    with pytest.raises(ValueError, match=message):
        sc.recipe(optimizer, steps=steps)


def test_it_refuses_an_optimizer_in_use():
    optimizer = SGD(0.1, momentum=0.9)
    optimizer.build([keras.Variable(np.zeros(3))])
    with pytest.raises(ValueError, match="has not been built"):
        sc.recipe(optimizer, steps=10)


@pytest.mark.parametrize(
    "optimizer, setting",
    [
        (SGD(0.1, momentum=0.9), "SGD(momentum=0.9)"),
        ("adam", "Adam(beta_1=0.9)"),
        (keras.optimizers.RMSprop(momentum=0.5), "RMSprop(momentum=0.5)"),
        (keras.optimizers.Muon(), "Muon(momentum=0.95, adam_beta_1=0.9)"),
    ],
)
def test_one_line_warns_of_momentum_at_build(optimizer, setting):
    (line,) = built(sc.ScaleComOptimizer(optimizer))
    assert setting in line and "ratio of 100" in line and "tf_scalecom.recipe(" in line


@pytest.mark.parametrize(
    "optimizer",
    [
        sc.ScaleComOptimizer(SGD(0.1)),
        sc.ScaleComOptimizer(SGD(0.1, momentum=0.9), compression_ratio=4),
        sc.ScaleComOptimizer(SGD(0.1, momentum=0.9), exclude="."),
        sc.ScaleComOptimizer(keras.optimizers.Adafactor(epsilon_1=1e-16)),
        sc.recipe("adam", steps=10),
    ],
)
def test_no_line_where_nothing_is_to_be_feared(optimizer):
    assert not built(optimizer)


def test_the_warning_under_a_strategy():
    strategy = make_strategy("scalecom_ops")
    with strategy.scope():
        assert len(built(sc.ScaleComOptimizer("adam"))) == 1
