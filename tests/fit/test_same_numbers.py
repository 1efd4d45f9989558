"""What a script trains and shows on several workers is what one process gives."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from worker_main import rewritten_graphs

import tf_scalecom as sc

BATCH = 8
EPOCHS = 2
# After two batches of 8 one of 5 rows, or one of 1: on most workers none.
LAST_BATCHES = {"partial": 21, "empty": 17}


# --- One model with a head for each kind of loss --------------------------------------------------


def mean_of_all(y_true, y_pred):
    """Of the user's own, one number for the batch."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


def sum_of_all(y_true, y_pred):
    return 0.1 * keras.ops.sum(keras.ops.square(y_true - y_pred))


def contrast(y_true, y_pred):
    """How well each row's prediction is told from those of the other rows of the batch."""
    return -keras.ops.mean(
        keras.ops.diagonal(keras.ops.log_softmax(y_pred @ keras.ops.transpose(y_true)))
    )


LOSSES = {
    "mean": lambda: "mse",
    "sum": lambda: keras.losses.MeanAbsoluteError(reduction="sum"),
    "weighted": lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
    "classes": lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "number_sum": lambda: sum_of_all,
    "number_contrast": lambda: contrast,
    "masked": lambda: "mse",
    "masked_weighted": lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
}
ALL_HEADS = tuple(LOSSES)
FEW_HEADS = ("mean", "number_contrast", "masked_weighted")
WEIGHTED = ("weighted", "masked_weighted", "mean")
METRICS = {
    "mean": ["mae", keras.metrics.RootMeanSquaredError],
    "classes": ["accuracy"],
    "number_sum": [mean_of_all, keras.metrics.R2Score],
    "masked": ["mae"],
}


class Penalties(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


class OwnStep(keras.Model):
    """Its step has a term of its own, forgets `scale_loss`, and returns whatever there is."""

    def train_step(self, data):
        x, y, sample_weight = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(x, y, predictions, sample_weight)
            own = keras.ops.mean(keras.ops.square(predictions["mean"]))
            total = loss + 0.3 * own
        gradients = tape.gradient(total, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self._loss_tracker.update_state(total)
        return self.compute_metrics(x, y, predictions, sample_weight) | {
            "total": total,
            "of_loss": loss / 2,
            "rows": predictions["mean"][:, 0],
            "rate": self.optimizer.learning_rate,
            "iterations": self.optimizer.iterations,
            "float": 0.5,
            "int": 3,
            "numpy": np.float32(0.25),
            "nothing": None,
            "nested": {"total": 2 * total, "int": 7},
        }


def model(kind, optimizer, heads, **arguments):
    x, ids = keras.Input((4,), name="x"), keras.Input((5,), dtype="int32", name="ids")
    hidden = keras.layers.Dense(6, activation="tanh", activity_regularizer="l2", name="hidden")(x)
    hidden = Penalties()(hidden)
    words = keras.layers.Embedding(9, 3, mask_zero=True, name="embedding")(ids)
    outputs = {
        head: keras.layers.Dense(3, kernel_regularizer="l2", name=head)(
            words if head.startswith("masked") else hidden
        )
        for head in heads
    }
    built = kind({"x": x, "ids": ids}, outputs)
    metrics = {
        head: [metric() if isinstance(metric, type) else metric for metric in of_head]
        for head, of_head in METRICS.items()
        if head in heads
    }
    losses = {head: LOSSES[head]() for head in heads}
    built.compile(
        optimizer, losses, metrics=metrics, weighted_metrics={"mean": ["mae"]}, **arguments
    )
    return built


def data(rows, heads):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 4)).astype(np.float32)
    # Some words of each sentence are none, and all words of some.
    ids = draw.integers(1, 9, (rows, 5)) * (draw.random((rows, 5)) < draw.random((rows, 1)))
    shapes = {head: (rows, 5) if head.startswith("masked") else (rows,) for head in heads}
    y = {head: draw.normal(size=(*shape, 3)) for head, shape in shapes.items()}
    if "classes" in heads:
        y["classes"] = draw.integers(0, 3, rows)
    weights = {
        head: draw.uniform(0.1, 3, shape) if head in WEIGHTED else np.ones(shape)
        for head, shape in shapes.items()
    }
    slices = ({"x": x, "ids": ids.astype(np.int32)}, y, weights)
    return tf.data.Dataset.from_tensor_slices(
        tf.nest.map_structure(lambda a: a.astype(np.float32) if a.dtype == float else a, slices)
    )


@rewritten_graphs()
def train(
    strategy,
    kind,
    rows,
    wrapped,
    drop=False,
    forever=False,
    eager=False,
    at_once=1,
    epochs=EPOCHS,
    heads=ALL_HEADS,
    evaluates=False,
):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        # Not Adam, which makes a step of the rounding of a gradient that is 0.
        inner = keras.optimizers.SGD(0.02, momentum=0.9)
        optimizer = sc.ScaleComOptimizer(inner, compression_ratio=1) if wrapped else inner
        trained = model(kind, optimizer, heads, run_eagerly=eager, steps_per_execution=at_once)
    batches = data(rows, heads).batch(BATCH, drop_remainder=drop)
    endless = {"steps_per_epoch": -(-rows // BATCH)} if forever else {}
    history = trained.fit(
        batches.repeat() if forever else batches,
        epochs=epochs,
        validation_data=data(rows, heads).batch(BATCH) if evaluates else None,
        verbose=0,
        **endless,
    ).history
    return {
        "history": history,
        "weights": {v.path: v.numpy() for v in trained.trainable_variables},
    }


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for part, values in expected.items():
        assert got[part].keys() == values.keys()
        for name, value in values.items():
            for one, other in zip(
                keras.tree.flatten(got[part][name]), keras.tree.flatten(value), strict=True
            ):
                if other is None:
                    assert one is None
                else:
                    np.testing.assert_allclose(
                        one, other, rtol=1e-5, atol=1e-5, err_msg=f"{part} {name}"
                    )


@functools.cache
def train_alone(kind, rows, **arguments):
    return train(tf.distribute.get_strategy(), kind, rows, wrapped=False, **arguments)


def assert_same_on(workers, cluster, kind, rows, *, wrapped=False, **arguments):
    for got in cluster(workers).run(train, kind, rows, wrapped, timeout=180, **arguments):
        assert_same(got, train_alone(kind, rows, **arguments))


KINDS = {"own_step": OwnStep, "step_of_keras": keras.Model}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "kind", "last", "how"),
    [
        (2, "own_step", "partial", {"wrapped": True, "evaluates": True}),
        (3, "own_step", "empty", {"heads": FEW_HEADS}),
        (2, "step_of_keras", "empty", {"wrapped": True, "evaluates": True, "heads": FEW_HEADS}),
    ],
)
def test_losses_metrics_and_logs_are_those_of_one_process(cluster, workers, kind, last, how):
    assert_same_on(workers, cluster, KINDS[kind], LAST_BATCHES[last], **how)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"eager": True, "epochs": 1},
        {"at_once": 3},
        {"forever": True},
        {"forever": True, "drop": True},
    ],
    ids=lambda how: "-".join(how),
)
def test_so_they_are_however_steps_are_made_and_data_end(cluster, how):
    rows = LAST_BATCHES["partial"]
    workers = 3 if "forever" in how else 2
    assert_same_on(workers, cluster, OwnStep, rows, heads=FEW_HEADS, **how)


@pytest.mark.slow
def test_so_they_are_on_several_replicas_of_one_process(cluster):
    rows = LAST_BATCHES["empty"]
    (got,) = cluster(1, logical_cpus=3).run(
        train, OwnStep, rows, wrapped=True, heads=FEW_HEADS, timeout=180
    )
    assert_same(got, train_alone(OwnStep, rows, heads=FEW_HEADS))


# --- Gradients, weighed once ----------------------------------------------------------------------


class Scales(keras.Model):
    """Its step may hand the loss to `scale_loss`, as under mixed_float16, or not."""

    scales = True

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(x, training=True) - y))
            scaled = self.optimizer.scale_loss(loss) if self.scales else loss
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def sgd(**arguments):
    return keras.optimizers.SGD(0.1, **arguments)


def wrapped_sgd(**arguments):
    return sc.ScaleComOptimizer(sgd(**arguments), compression_ratio=1)


@keras.saving.register_keras_serializable()
def optimizer_of(variable):
    return sgd()


def several():
    return keras.optimizers.MultiOptimizer(optimizer_of)


OPTIMIZERS = {
    "plain": sgd,
    "wrapped": wrapped_sgd,
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=8.0),
    "loss_scale_wrapped": lambda: keras.optimizers.LossScaleOptimizer(
        wrapped_sgd(), initial_scale=8.0
    ),
    "factor": lambda: sgd(loss_scale_factor=4.0),
    "factor_wrapped": lambda: wrapped_sgd(loss_scale_factor=4.0),
    "several": several,
    "accumulated": lambda: wrapped_sgd(gradient_accumulation_steps=2),
}


def rows_of(count):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, 4)).astype(np.float32)
    return x, x.sum(axis=1, keepdims=True)


def weights_by_optimizer(strategy):
    result = {}
    for name, make in OPTIMIZERS.items():
        for scales in (True, False):
            keras.utils.set_random_seed(1)
            with strategy.scope():
                trained = Scales(x := keras.Input((4,)), keras.layers.Dense(1)(x))
                trained.scales = scales
                trained.compile(make())
            data = tf.data.Dataset.from_tensor_slices(rows_of(13)).batch(8)
            history = trained.fit(data, verbose=0).history
            result[name, scales] = [*trained.get_weights(), history["loss"]]
    return result


def test_a_gradient_counts_once_whatever_scales_its_loss(cluster):
    alone = weights_by_optimizer(tf.distribute.get_strategy())
    for got in cluster(2).run(weights_by_optimizer, timeout=180):
        for case, values in alone.items():
            for one, other in zip(got[case], values, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=str(case))


def assert_fits_alike(cluster, fit, rtol=1e-5, atol=1e-6):
    """Two workers come to the numbers of one process."""
    alone = fit(tf.distribute.get_strategy())
    for got in cluster(2).run(fit):
        for one, other in zip(got, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol, atol)


class Weighs(keras.Model):
    """Its rows count by what it predicts: the sum of their weights has a gradient, too."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, keras.ops.exp(y_pred[:, 0]), training)


def fit_weighing(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        trained = Weighs(x := keras.Input((4,)), keras.layers.Dense(1)(x))
        trained.compile(sgd(), keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    trained.fit(tf.data.Dataset.from_tensor_slices(rows_of(13)).batch(8), verbose=0)
    return trained.get_weights()


def test_weights_of_rows_may_depend_on_what_is_trained(cluster):
    assert_fits_alike(cluster, fit_weighing)


class LargeSum(keras.losses.Loss):
    """One number for a batch, in float16: `start` or more, with the gradient of a sum."""

    def __init__(self, start):
        super().__init__(dtype="float16")
        self.start = start

    def call(self, y_true, y_pred):
        return keras.ops.sum(y_pred - y_true) + self.start


class Halves(keras.Model):
    """Its step weighs its losses by a number."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        losses = [
            loss(y, of_head, sample_weight=0.5)
            for loss, of_head in zip(self.loss, y_pred, strict=True)
        ]
        return sum(keras.ops.cast(loss, "float32") for loss in losses)


def fit_large(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        x = keras.Input((4,))
        trained = Halves(x, [keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)])
        # The first is finite, and twice as much, of half of the rows, is not.
        trained.compile(sgd(), [LargeSum(60000.0), LargeSum(float("inf"))])
    data = tf.data.Dataset.from_tensor_slices(rows_of(13)).batch(8)
    history = trained.fit(data, verbose=0).history
    return [*trained.get_weights(), history["loss"]]


def test_a_loss_that_is_one_number_has_its_gradient_however_large_it_is(cluster):
    assert_fits_alike(cluster, fit_large, rtol=1e-3, atol=1e-3)


def spread(y_true, y_pred):
    """One number for a batch, of targets with several words a row, each of them two by two."""
    words = tf.reduce_sum(y_true, axis=[1, 2])
    return keras.ops.std(tf.reduce_sum(words, axis=-1) - y_pred[:, 0]) + keras.ops.mean(words)


def fit_ragged(strategy):
    keras.utils.set_random_seed(1)
    x, _ = rows_of(17)  # one worker has none of the last batch
    lengths = np.arange(17) % 4
    words = np.random.default_rng(0).normal(size=(lengths.sum(), 2, 2)).astype(np.float32)
    targets = tf.RaggedTensor.from_row_lengths(words, lengths)
    with strategy.scope():
        trained = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        trained.compile(sgd(), spread)
    data = tf.data.Dataset.from_tensor_slices((x, targets)).batch(8)
    history = trained.fit(data, epochs=2, verbose=0).history
    return [*trained.get_weights(), history["loss"]]


def test_targets_of_a_loss_that_is_one_number_may_be_ragged(cluster):
    assert_fits_alike(cluster, fit_ragged)


# --- Metrics that a step updates by itself --------------------------------------------------------


def renamed(step):
    """A decorator that hides the name of what it decorates."""
    return lambda model, data: step(model, data)


class Reports(keras.Model):
    """Its steps update metrics with numbers, and return their results wherever."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.sum, self.rows = keras.metrics.Sum("sum"), keras.metrics.Sum("rows")
        self.steps, self.mean = keras.metrics.Sum("steps"), keras.metrics.Mean("mean")

    @renamed
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.report(x, loss)

    @renamed
    def test_step(self, data):
        x, y = data
        return self.report(x, keras.ops.mean(keras.ops.abs(self(x) - y)))

    def report(self, x, number):
        self.sum.update_state(number)
        self.rows.update_state(tf.shape(x)[0])
        self.steps.update_state(1)
        self.mean.update_state(number)
        return {
            "sum": self.sum.result(),
            "counts": {"rows": self.rows.result(), "steps": self.steps.result()},
            "nested": {"mean": self.mean.result()},
        }


def logs_of_reports(strategy, rows):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        trained = Reports(x := keras.Input((4,)), keras.layers.Dense(1)(x))
        trained.compile(sgd())
    data = tf.data.Dataset.from_tensor_slices(rows_of(rows)).batch(8)
    history = trained.fit(data, epochs=2, verbose=0).history
    return {"history": history, "evaluate": trained.evaluate(data, verbose=0, return_dict=True)}


def test_metrics_that_a_step_is_to_update_by_itself(cluster):
    expected = logs_of_reports(tf.distribute.get_strategy(), 17)
    assert expected["history"]["rows"] == [17, 17] and expected["history"]["steps"] == [3, 3]
    for got in cluster(2).run(logs_of_reports, 17):
        assert_same(got, expected)


# --- Batches that nobody counts -------------------------------------------------------------------


def train_on_batches(strategy):
    """Batches of `train_on_batch`, the same on all workers, between epochs that end in less."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        trained = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        trained.compile(sgd(), "mse")
    data = tf.data.Dataset.from_tensor_slices(rows_of(13)).batch(8)
    trained.fit(data, verbose=0)
    losses = [float(trained.train_on_batch(*rows_of(6))) for _ in range(2)]
    losses.append(float(trained.test_on_batch(*rows_of(5))))
    return losses + trained.fit(data, verbose=0).history["loss"], trained.get_weights()


def test_batches_of_all_workers_count_alike(cluster):
    expected = train_on_batches(tf.distribute.get_strategy())
    for got in cluster(2).run(train_on_batches):
        for one, other in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
