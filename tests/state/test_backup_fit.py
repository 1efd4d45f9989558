"""What of a model a backup holds, and what it says to another model or other optimizers."""

import enum

import keras
import numpy as np
import pytest
import tensorflow as tf
from digits import digest
from keras import layers, optimizers

import tf_scalecom as sc
from tf_scalecom.state import model_objects, training_state


def wrapped(optimizer, **arguments):
    return sc.ScaleComOptimizer(optimizer, **{"compression_ratio": 20, **arguments})


def compiled(*parts, optimizer=None, loss="mse"):
    model = keras.Sequential([keras.Input((8,)), *parts])
    model.compile(optimizer or optimizers.SGD(0.1, momentum=0.9), loss=loss)
    return model


def begin(model, folder):
    callback = sc.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    callback.set_model(model)
    callback.on_train_begin()
    return callback


def back_up(model, folder):
    callback = begin(model, folder)
    callback.on_epoch_begin(0)
    callback.on_epoch_end(0)
    callback.on_train_end()


@pytest.fixture
def said(monkeypatch):
    """The warnings of a restore."""
    lines = []
    monkeypatch.setattr(
        "tf_scalecom.state.backup_fit.logging.warning",
        lambda line, *parts: lines.append(line % parts),
    )
    return lines


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_outline_is_the_state_without_the_memory(dtype):
    layer = layers.Dense(300, dtype=dtype)
    model = compiled(layer, optimizer=wrapped(optimizers.Adam(0.1), compression_ratio=2))
    training_state.build_optimizer(model)
    state, outline = training_state.read(model), training_state.outline(model)
    assert {name: form(kept) for name, kept in state.items()} == {
        name: form(kept) for name, kept in outline.items()
    }
    assert any(kept.summable for kept in outline.values())
    assert all(part.strides == (0,) * part.ndim for kept in outline.values() for part in kept.parts)


def form(kept):
    return [(part.shape, part.dtype) for part in kept.parts], kept.summable


# --- Refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "complaint"),
    [
        (
            lambda: optimizers.SGD(0.1, momentum=0.9),
            lambda: optimizers.Adagrad(0.1),
            r"optimizer: 'SGD' \(the backup\), 'Adagrad' \(this program\)",
        ),
        (
            lambda: wrapped(optimizers.SGD(0.1, momentum=0.9)),
            lambda: wrapped(optimizers.Adagrad(0.1)),
            "'ScaleComOptimizer of SGD' .*'ScaleComOptimizer of Adagrad'",
        ),
        (
            lambda: wrapped(optimizers.SGD(0.1)),
            lambda: optimizers.SGD(0.1),
            "'ScaleComOptimizer of SGD' .*'SGD'",
        ),
        (
            lambda: optimizers.LossScaleOptimizer(wrapped(optimizers.SGD(0.1))),
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)),
            "'LossScaleOptimizer of ScaleComOptimizer of SGD'",
        ),
        (
            lambda: optimizers.RMSprop(0.1, momentum=0.9),
            lambda: optimizers.RMSprop(0.1, centered=True),
            r"role: 'momentum' \(the backup\), 'average_gradient' \(this program\)",
        ),
        (
            lambda: wrapped(optimizers.SGD(0.1, momentum=0.9)),
            lambda: wrapped(optimizers.SGD(0.1, use_ema=True)),
            "role: 'momentum' .*'average'",
        ),
    ],
)
def test_what_an_optimizer_keeps_is_never_anothers(tmp_path, first, then, complaint):
    back_up(compiled(layers.Dense(4), optimizer=first()), tmp_path)
    with pytest.raises(ValueError, match=complaint):
        begin(compiled(layers.Dense(4), optimizer=then()), tmp_path)


# --- Said ----------------------------------------------------------------------------------------


class Mode(enum.StrEnum):
    FAST = "fast"


class Broken(layers.Layer):
    """Whose configuration fails."""

    def get_config(self):
        raise RuntimeError("not now")


class Odd(layers.Layer):
    """Whose configuration holds what JSON gives back as something else."""

    def get_config(self):
        numbers = {"rate": np.float64(0.1), "count": np.int64(3), "size": (1, 2)}
        return {"mode": Mode.FAST, **numbers, "layers": [64, 32], "input_layers": 1}


class Scaled(layers.Layer):
    """With variables of the shapes that Dense(8) has, and an argument that no config can hold."""

    def __init__(self, function=None):
        super().__init__()
        self.function = function

    def build(self, shape):
        self.kernel = self.add_weight(shape=(8, 8))
        self.bias = self.add_weight(shape=(8,))

    def call(self, x):
        return x @ self.kernel + self.bias


def skipping(skips):
    inputs = keras.Input((8,))
    hidden = layers.Dense(8)(inputs)
    output = layers.Dense(8)(layers.Add()([hidden, inputs if skips else hidden]))
    model = keras.Model(inputs, output)
    model.compile(optimizers.SGD(0.1), loss="mse")
    return model


def named(*names):
    return compiled(*(layers.Dense(8, name=name) for name in names))


def scaled(initial_scale):
    optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=initial_scale)
    return compiled(layers.Dense(8), optimizer=optimizer)


@pytest.mark.parametrize(
    ("first", "then", "change"),
    [
        (
            lambda: compiled(layers.Dense(8, "relu"), layers.Dense(8, "tanh")),
            lambda: compiled(layers.Dense(8, "tanh"), layers.Dense(8, "relu")),
            "layers.0.config.activation: 'relu' (the backup), 'tanh' (this program)",
        ),
        (lambda: named("encoder", "head"), lambda: named("head", "encoder"), "layers.0.name"),
        (
            lambda: compiled(layers.Dense(8)),
            lambda: compiled(Scaled()),
            "layers.0.class: 'Dense' (the backup), 'Scaled' (this program)",
        ),
        (lambda: skipping(True), lambda: skipping(False), "keras_history.0"),
        (
            lambda: compiled(layers.Dense(8), loss="mse"),
            lambda: compiled(layers.Dense(8), loss="mae"),
            "loss: 'mse' (the backup), 'mae' (this program)",
        ),
        (lambda: scaled(1024.0), lambda: scaled(2.0), "initial_scale: 1024.0 (the backup), 2.0"),
    ],
)
def test_a_model_of_the_same_shapes_that_means_something_else_is_a_warning(
    tmp_path, said, first, then, change
):
    back_up(first(), tmp_path)
    begin(then(), tmp_path)
    assert len(said) == 1 and change in said[0]


def many_kinds():
    """Layers whose configurations hold names, seeds, lambdas, arrays and other layers."""
    table = np.random.default_rng(0).normal(size=(8, 8))
    return compiled(
        layers.Dense(8, lambda x: x * 2, kernel_initializer=keras.initializers.Constant(table)),
        layers.Dropout(0.2),
        Scaled(function=lambda x: x),
        Broken(),
        Odd(),
        layers.Reshape((4, 2)),
        layers.Bidirectional(layers.LSTM(3)),
        layers.Lambda(lambda x: x + 1),
        keras.Sequential([layers.Dense(8), layers.GaussianNoise(0.1)]),
        layers.Normalization(mean=np.zeros(8), variance=np.ones(8)),
        layers.Dense(1),
        loss=lambda y, p: p,
        optimizer=wrapped(optimizers.Adam(optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))),
    )


@pytest.mark.parametrize("build", [many_kinds, lambda: skipping(True), lambda: named("a", "b")])
def test_the_same_model_again_is_silent_however_keras_counts_its_names(tmp_path, said, build):
    back_up(build(), tmp_path)
    build()
    begin(build(), tmp_path)
    assert said == []


# --- All optimizers ------------------------------------------------------------------------------


class Gan(keras.Model):
    """Optimizers in an attribute, in a dictionary of lists, and in a model inside."""

    def __init__(self, build_optimizers=True):
        super().__init__()
        self.g = keras.Sequential([keras.Input((8,)), layers.Dense(64, "relu"), layers.Dense(16)])
        self.d = keras.Sequential([keras.Input((16,)), layers.Dense(64, "relu"), layers.Dense(1)])
        self.d.head_optimizer = optimizers.SGD(0.01, momentum=0.9)
        self.go = optimizers.LossScaleOptimizer(wrapped(optimizers.Adam(0.01)), initial_scale=8.0)
        self.others = {"body": [wrapped(optimizers.SGD(0.01, momentum=0.9), beta=0.5)]}
        self.built = True
        self.compile()
        if build_optimizers:
            for optimizer, variables in self.trained():
                optimizer.build(variables)

    def trained(self):
        body, head = self.d.trainable_variables[:2], self.d.trainable_variables[2:]
        return [
            (self.go, self.g.trainable_variables),
            (self.others["body"][0], body),
            (self.d.head_optimizer, head),
        ]

    def call(self, x):
        return self.d(x)

    def train_step(self, data):
        real, noise = data
        with tf.GradientTape(persistent=True) as tape:
            fake = self.d(self.g(noise))
            loss = tf.reduce_mean(tf.nn.softplus(-self.d(real)) + tf.nn.softplus(fake))
            scaled_loss = self.go.scale_loss(tf.reduce_mean(tf.nn.softplus(-fake)))
        for optimizer, variables in self.trained():
            of = scaled_loss if optimizer is self.go else loss
            optimizer.apply(tape.gradient(of, variables), variables)
        return {"loss": loss}


def train_gan(strategy, epochs, *folder, built=True):
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = Gan(built)
    random = np.random.default_rng(strategy.extended._id_in_cluster)
    data = [random.normal(size=(40, size)).astype("float32") for size in (16, 8)]
    model.fit(
        strategy.distribute_datasets_from_function(
            lambda _: tf.data.Dataset.from_tensor_slices(tuple(data)).batch(8)
        ),
        epochs=epochs,
        verbose=0,
        callbacks=[sc.callbacks.BackupAndRestore(path, delete_checkpoint=False) for path in folder],
    )
    inner = model.go.inner_optimizer, model.others["body"][0]
    return {
        "weights": digest(model.trainable_variables),
        "steps": [int(o.iterations.numpy()) for o, _ in model.trained()],
        "slots": [digest(o.variables) for o in (inner[0].inner_optimizer, model.d.head_optimizer)],
        "residuals": [p.tobytes() for o in inner for ps in o.residuals.values() for p in ps],
    }


@pytest.mark.parametrize(("workers", "built"), [(1, False), (3, True)])
def test_all_optimizers_of_a_gan_go_on_bit_for_bit(cluster, tmp_path, workers, built):
    """Also where they are first built in a step, after the restore."""
    run = cluster(workers).run
    straight = run(train_gan, 2, built=built, timeout=180)
    run(train_gan, 1, str(tmp_path), built=built, timeout=180)
    again = run(train_gan, 2, str(tmp_path), built=built, timeout=180)
    assert again == straight
    assert again[0]["steps"] == [10, 10, 10]


def test_optimizers_have_the_names_of_their_attributes_and_those_inside_others_have_none():
    model = Gan()
    model.inner = model.go.inner_optimizer
    model.again = (model.go,)
    assert list(model_objects.optimizers(model)) == [
        "again.0",
        "d.head_optimizer",
        "optimizer",
        "others.body.0",
    ]


def test_an_optimizer_that_a_backup_does_not_hold_begins_anew_and_one_too_many_is_an_error(
    tmp_path, said
):
    model = compiled(layers.Dense(4))
    back_up(model, tmp_path / "one")
    model.other = optimizers.Adam(0.1)
    model.other.build(model.trainable_variables)
    begin(model, tmp_path / "one").on_train_end()
    assert len(said) == 1 and "['other']" in said[0]
    back_up(model, tmp_path / "two")
    with pytest.raises(ValueError, match=r"other: 'Adam' \(the backup\), nothing \(this program\)"):
        begin(compiled(layers.Dense(4)), tmp_path / "two")


def test_an_optimizer_for_variables_that_the_model_does_not_hold_is_to_be_built_before(tmp_path):
    def model(build):
        model = compiled(layers.Dense(4))
        model.other = optimizers.Adam(0.1)
        if build:
            model.other.build([keras.Variable(np.zeros(3))])
        return model

    back_up(model(build=True), tmp_path)
    begin(model(build=True), tmp_path).on_train_end()
    with pytest.raises(ValueError, match=r"'other' to be built before `fit`.* `build"):
        begin(model(build=False), tmp_path)
