"""`callbacks.CompressionMonitor`: its numbers against a hand computation, and whom it needs."""

import csv
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_scalecom as sc

# Of the model below on two workers, whose ring all-reduce sends each byte of its buffer once.
# kernel 20 x 64: 128 of 1,280 kept, 4 bytes each, and 1 byte of offset, broadcast in every other
# step; a finite flag; then biases 64 and 1, kernel 64 x 1: dense.
SENT = 128 * 4 + 128 * 1 / 2 + 4 + 4 * (64 + 1 + 64)
DENSE = 4 * (1_280 + 64 + 1 + 64)
BATCH = 8


def build(strategy, steps_per_execution=1, accumulate=None, loss_scaling=False, **arguments):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((20,)), keras.layers.Dense(64), keras.layers.Dense(1)]
        )
        inner = keras.optimizers.SGD(0.01, gradient_accumulation_steps=accumulate)
        optimizer = sc.ScaleComOptimizer(inner, 10, **arguments)
        if loss_scaling:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
    return model


def rows(count, seed=0):
    x = np.random.default_rng(seed).normal(size=(count, 20)).astype(np.float32)
    return x, x[:, :1]


def train(model, callbacks, steps=4, epochs=1, data=None):
    """Trains all replicas on `data`, which are the same on all workers, in `steps` batches."""
    x, y = data or rows(steps * BATCH)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(len(x) // steps)
    return model.fit(batches, epochs=epochs, verbose=0, callbacks=callbacks).history


def lines(path):
    with open(path, newline="") as file:
        return [
            {name: float(value) for name, value in line.items()} for line in csv.DictReader(file)
        ]


def scalars(folder):
    """[{step, name: value}] of all event files, in the order of steps."""
    by_step = {}
    for path in folder.iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                name = value.tag.removeprefix("compression/")
                by_step.setdefault(event.step, {})[name] = float(tf.make_ndarray(value.tensor))
    return [{"step": step, **values} for step, values in sorted(by_step.items())]


# --- On two workers ------------------------------------------------------------------------------


def fit_monitored(strategy, folder, **arguments):
    model = build(strategy, **arguments)
    rank = strategy.extended._id_in_cluster
    monitor = sc.callbacks.CompressionMonitor(f"{folder}/{rank}", f"{folder}/{rank}.csv")
    history = train(model, [monitor], epochs=2)
    norms = [np.linalg.norm(parts[0]) for parts in model.optimizer.residuals.values()]
    return history, norms


@pytest.mark.quick
def test_bytes_of_warm_up_and_compressed_steps(cluster, tmp_path):
    results = cluster(2).run(fit_monitored, str(tmp_path), steps_per_execution=2, warmup_steps=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "0.csv"]  # the chief's alone
    table = lines(tmp_path / "0.csv")
    assert [(line["epoch"], line["step"]) for line in table] == [(0, 4), (1, 8)]
    sent = np.array([3 * DENSE + SENT, 4 * SENT])
    for rank, (history, (norm,)) in enumerate(results):
        np.testing.assert_allclose(history["bytes_sent"], sent / 4)
        np.testing.assert_allclose(history["bytes_dense"], [DENSE, DENSE])
        np.testing.assert_allclose(history["ratio"], 4 * DENSE / sent)
        np.testing.assert_allclose(history["total_bytes_sent"], np.cumsum(sent))
        np.testing.assert_allclose(history["total_bytes_dense"], [4 * DENSE, 8 * DENSE])
        total_ratio = np.array([4, 8]) * DENSE / np.cumsum(sent)
        np.testing.assert_allclose(history["total_ratio"], total_ratio)
        assert history["skipped_steps"] == [0, 0]
        assert history["residual_norm"][1] == pytest.approx(norm, rel=1e-5) and norm > 0
        assert math.isnan(history["caught"][0]) == (rank == 1)  # step 3, the last, is worker 1's
        assert 0.5 < history["caught"][1] < 1
        if rank == 0:
            for name, values in history.items():
                if name != "loss":
                    assert values == [line[name] for line in table]
    shown = scalars(tmp_path / "0")
    for line, values in zip(table, shown, strict=True):
        del line["epoch"]
        assert values == pytest.approx(line, rel=1e-6)


class WeightsBefore(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.weights = [w.numpy() for w in self.model.trainable_variables]
        (self.residuals,) = self.model.optimizer.residuals.values()


def measured_and_by_hand(strategy, path, hierarchical=False):
    """What the monitor says about the last step, and the same by hand: a ratio, what is caught."""
    model = build(strategy, hierarchical=hierarchical)
    before = WeightsBefore()
    monitor = sc.callbacks.CompressionMonitor(csv_path=path, update_freq=1)
    replicas = strategy.num_replicas_in_sync
    x, y = rows(2 * replicas * BATCH)
    train(model, [before, monitor], steps=2, data=(x, y))
    kernel, bias, out, out_bias = before.weights
    x, y = np.split(x, 2)[1], np.split(y, 2)[1]
    error = (x @ kernel + bias) @ out + out_bias - y
    gradients = [
        x.T @ (2 * error / BATCH @ out.T) / replicas
        for x, error in zip(np.split(x, replicas), np.split(error, replicas), strict=True)
    ][strategy.extended._id_in_cluster :: 2]  # workers take the parts of a batch in turn
    gradient = np.sum(gradients, axis=0) if hierarchical else gradients[0]
    (parts,) = model.optimizer.residuals.values()
    ratio = np.linalg.norm(parts[0]) / np.linalg.norm(gradient)
    squares = np.square(before.residuals[0] + gradient).reshape(-1, 10)
    is_sent = (model.trainable_variables[0].numpy() != kernel).reshape(-1, 10)
    looked_at = np.linspace(0, len(squares) - 1, 64).astype(int)
    share = (squares * is_sent)[looked_at].sum() / squares[looked_at].max(axis=1).sum()
    exchanging = 2 if hierarchical else replicas
    caught = (1 + (exchanging - 1) * share) / exchanging
    return ratio, caught, lines(path)[-1] if strategy.extended._is_chief else None


@pytest.mark.parametrize("hierarchical", [False, True])
def test_residual_and_choice_against_the_gradient_of_the_same_step(cluster, tmp_path, hierarchical):
    workers = cluster(2, logical_cpus=2)
    path = str(tmp_path / "all.csv")
    (ratio, caught, line), _ = workers.run(measured_and_by_hand, path, hierarchical=hierarchical)
    assert line["residual_to_gradient"] == pytest.approx(ratio, rel=1e-4)
    assert line["caught"] == pytest.approx(caught, rel=1e-4)
    exchanging = 2 if hierarchical else 4
    ring = 2 * (exchanging - 1) / exchanging
    assert line["bytes_dense"] == pytest.approx(DENSE * ring)
    assert line["bytes_sent"] == pytest.approx(SENT * ring)


def fit_monitored_on_chief(strategy, path):
    """The model is trained before, so that the chief alone has to trace its step again."""
    model = build(strategy)
    train(model, [])
    monitor = sc.callbacks.CompressionMonitor(csv_path=path)
    return train(model, [sc.callbacks.chief_only(monitor)])


def test_one_worker_alone_may_have_it(cluster, tmp_path):
    path = tmp_path / "new" / "one.csv"
    _, other = cluster(2).run(fit_monitored_on_chief, str(path))
    (line,) = lines(path)
    assert line["bytes_sent"] == SENT and line["residual_to_gradient"] > 0
    assert list(other) == ["loss"]


# --- In one process ------------------------------------------------------------------------------


def mirrored():
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=sc.ScaleComAllReduce.for_devices(["CPU:0", "CPU:1"])
    )


def test_without_a_strategy_nothing_is_sent(tmp_path):
    monitor = sc.callbacks.CompressionMonitor(csv_path=tmp_path / "alone.csv")
    train(build(tf.distribute.get_strategy()), [monitor])
    (line,) = lines(tmp_path / "alone.csv")
    assert line["bytes_sent"] == line["bytes_dense"] == line["total_bytes_sent"] == 0
    assert line["ratio"] == line["total_ratio"] == 1
    assert line["residual_norm"] == line["residual_to_gradient"] == 0


def test_an_accumulated_update_is_one_step():
    model = build(mirrored(), accumulate=3, loss_scaling=True, warmup_steps=1)
    history = train(model, [sc.callbacks.CompressionMonitor()], steps=7)
    assert history["total_bytes_dense"] == [2 * DENSE]
    assert history["total_bytes_sent"] == [DENSE + SENT]
    assert history["residual_to_gradient"][0] > 0


def test_bytes_of_a_ramp():
    history = train(
        build(mirrored(), warmup_steps=4, warmup="ramp"),
        [sc.callbacks.CompressionMonitor()],
        steps=5,
    )
    # Ratios 4, 4.8, 5.8, 6.9, then 10; offsets fill whole words.
    kept, offset_bytes = np.array([320, 256, 214, 183, 128]), np.array([320, 256, 216, 184, 128])
    sent = kept * 4 + offset_bytes / 2 + 4 + 4 * (64 + 1 + 64)
    assert history["total_bytes_sent"] == [sent.sum()]
    assert history["total_bytes_dense"] == [5 * DENSE]


def test_a_skipped_step_counts_and_its_gradient_does_not():
    x, y = rows(2 * BATCH)
    x[0] = np.nan
    model = build(mirrored())
    history = train(model, [sc.callbacks.CompressionMonitor()], steps=2, data=(x, y))
    assert history["skipped_steps"] == [1] and history["total_bytes_sent"] == [2 * SENT]
    assert math.isfinite(history["residual_to_gradient"][0])


def test_training_that_goes_on_adds_to_the_files(tmp_path):
    model = build(tf.distribute.get_strategy())
    monitor = sc.callbacks.CompressionMonitor(tmp_path / "logs", tmp_path / "all.csv", 3)
    with tf.summary.record_if(False):  # as Keras's TensorBoard has it between its own steps
        train(model, [monitor], epochs=2)
        train(model, [monitor])
    reported = [3, 6, 8, 11, 12]  # what is left has a report, then the count starts anew with `fit`
    assert [line["step"] for line in lines(tmp_path / "all.csv")] == reported
    assert [values["step"] for values in scalars(tmp_path / "logs")] == reported
    train(build(tf.distribute.get_strategy()), [monitor])
    assert [line["step"] for line in lines(tmp_path / "all.csv")] == [3, 4]


class Fails(keras.callbacks.Callback):
    """Raises after so many batches of the second epoch."""

    def __init__(self, batches):
        super().__init__()
        self._batches = batches

    def on_epoch_begin(self, epoch, logs=None):
        self._fails = epoch == 1

    def on_train_batch_end(self, batch, logs=None):
        if self._fails and batch + 1 == self._batches:
            raise RuntimeError("a worker was killed")


def test_steps_made_again_after_a_restart_have_one_line(tmp_path):
    path = tmp_path / "all.csv"

    def callbacks():
        return [
            sc.callbacks.BackupAndRestore(tmp_path / "backup"),
            sc.callbacks.CompressionMonitor(csv_path=path, update_freq=2),
        ]

    with pytest.raises(RuntimeError, match="killed"):
        train(build(mirrored()), [*callbacks(), Fails(4)], epochs=3)
    before = lines(path)
    assert [line["step"] for line in before] == [2, 4, 6, 8]  # the last backup is of step 4
    with path.open("a") as file:
        file.write("1,12")  # killed while it wrote 128
    train(build(mirrored()), callbacks(), epochs=3)
    again = lines(path)
    assert [line["step"] for line in again] == [2, 4, 6, 8, 10, 12]
    assert again[:2] == before[:2]
    assert [line["total_bytes_sent"] for line in again] == [SENT * line["step"] for line in again]


def test_steps_after_a_monitored_fit_are_not_measured():
    model = build(mirrored())
    monitor = sc.callbacks.CompressionMonitor()
    train(model, [monitor])
    step, measured = model.train_function, model.optimizer.gradient_norm.value()
    assert measured > 0
    train(model, [], steps=25)  # more than lie between two measurements
    assert model.optimizer.gradient_norm.value() == measured
    history = train(model, [monitor])
    assert history["residual_to_gradient"][0] > 0
    assert model.optimizer.gradient_norm.value() != measured
    assert model.train_function is step  # not traced again


def test_what_is_refused():
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    with pytest.raises(ValueError, match=r"is a ScaleComOptimizer; received Adam\. Wrap"):
        train(model, [sc.callbacks.CompressionMonitor()])
    for update_freq in (0, True, "batch"):
        with pytest.raises(ValueError, match="expected `update_freq` to be 'epoch' or a number"):
            sc.callbacks.CompressionMonitor(update_freq=update_freq)
