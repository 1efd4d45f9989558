"""What a Keras optimizer does beside its update, compressed, on two worker processes.

Steps with given gradients are eager; SGD at learning rate 1 shows what was reduced.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_scalecom as sc

SGD = keras.optimizers.SGD
WORKERS = 2
SHAPES = ((40, 50), (10,))  # compressed, and dense because small


def gradients_of(worker, step=0, shapes=SHAPES):
    rng = np.random.default_rng([worker, step])
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def variables(shapes=SHAPES, dtype="float32", value=0.0):
    return [keras.Variable(np.full(s, value), dtype=dtype, name=f"v{s}") for s in shapes]


def apply(strategy, optimizer, gradients, trained):
    gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
    strategy.run(lambda: optimizer.apply(gradients, trained))


def values(trained):
    return [tf.cast(v.value, "float64").numpy() for v in trained]


def residual_of(optimizer, index=0):
    return list(optimizer.residuals.values())[index][0]


# --- Accumulation, decay, averages ---------------------------------------------------------------


def accumulate(strategy, every, steps):
    """`steps` updates, each from the mean of `every` gradients, with averages written back."""
    worker = strategy.extended._id_in_cluster
    with strategy.scope():
        trained = variables(value=1.0)
        inner = SGD(
            0.1,
            momentum=0.9,
            use_ema=True,
            ema_momentum=0.5,
            ema_overwrite_frequency=2,
            gradient_accumulation_steps=every if every > 1 else None,
        )
        optimizer = sc.ScaleComOptimizer(inner, 10, beta=0.5)
        optimizer.build(trained)

    @tf.function
    def step(*gradients):
        strategy.run(lambda: optimizer.apply(list(gradients), trained))

    parts = {1: [1.0], 2: [0.5, 1.5]}[every]  # with mean 1
    for t in range(steps):
        for part in parts:
            step(*(tf.constant(part * g) for g in gradients_of(worker, t)))
    return {
        "weights": values(trained),
        "residual": residual_of(optimizer),
        "averages": values(inner._model_variables_moving_average),
        "iterations": int(optimizer.iterations.numpy()),
    }


@pytest.mark.quick
def test_accumulation_compresses_the_mean_once_per_update(cluster):
    first, second = cluster(WORKERS).run(accumulate, every=2, steps=4, timeout=90)
    expected, _ = cluster(WORKERS).run(accumulate, every=1, steps=4, timeout=90)
    assert first["iterations"] == expected["iterations"] == 4
    np.testing.assert_allclose(first["residual"], expected["residual"], rtol=1e-5, atol=1e-6)
    assert not np.array_equal(first["residual"], second["residual"])
    for mine, theirs, average in zip(
        first["weights"], second["weights"], first["averages"], strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(mine, average)  # the fourth update wrote them back
        assert mine.all() and (mine != 1).any()


def odd_variables(strategy):
    """A scalar, one element, none, zero gradients, no gradient; weight decay on all that have."""
    shapes = ((), (1,), (0, 4), (40, 50), (50, 40))
    with strategy.scope():
        trained = variables(shapes, value=2.0)
        optimizer = sc.ScaleComOptimizer(SGD(0.5, weight_decay=0.1), 10)
        optimizer.build(trained)
    gradients = [np.float32(1), np.ones(1, "f"), np.ones((0, 4), "f"), np.zeros((40, 50), "f")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            apply(strategy, optimizer, [*gradients, None], trained)
    assert any("Gradients do not exist" in str(w.message) for w in caught)
    return values(trained), [np.abs(r[0]).max() for r in optimizer.residuals.values()]


def test_odd_variables_and_weight_decay_once_a_step(cluster):
    for (scalar, one, none, zero, without), residuals in cluster(WORKERS).run(odd_variables):
        expected = 2.0
        for _ in range(3):
            expected = expected * (1 - 0.1 * 0.5) - 0.5 * WORKERS
        np.testing.assert_allclose(scalar, expected, rtol=1e-6)
        np.testing.assert_allclose(one, [expected], rtol=1e-6)
        assert none.shape == (0, 4)
        np.testing.assert_allclose(zero, np.full((40, 50), 2.0 * 0.95**3), rtol=1e-6)
        np.testing.assert_array_equal(without, np.full((50, 40), 2.0))
        assert residuals == [0, 0]


def other_dtypes(strategy):
    results = {}
    for dtype in ("float16", "bfloat16", "float64"):
        shapes = ((400, 200), (10,))  # more than 65,536 elements, and small
        with strategy.scope():
            trained = variables(shapes, dtype)
            optimizer = sc.ScaleComOptimizer(SGD(1.0), 100)
        apply(strategy, optimizer, [tf.ones(s, dtype) for s in shapes], trained)
        results[dtype] = values(trained), residual_of(optimizer)
    return results


def test_variables_of_other_dtypes(cluster):
    for result in cluster(WORKERS).run(other_dtypes):
        for (kernel, bias), residual in result.values():
            assert (kernel == -2).sum() == 800 and (kernel != 0).sum() == 800
            assert (bias == -2).all()
            assert residual.dtype == np.float32 and residual.sum() == 400 * 200 - 800


# --- Mixed precision ---------------------------------------------------------------------------


def scaled_steps(strategy):
    """Loss scaling multiplies the gradients; the residual must not see it, nor its changes."""
    gradients = gradients_of(strategy.extended._id_in_cluster)
    residuals = {}
    for kind in ("plain", "dynamic", "fixed"):
        with strategy.scope():
            trained = variables()
            wrapped = sc.ScaleComOptimizer(
                SGD(1.0, loss_scale_factor=64.0 if kind == "fixed" else None), 10
            )
            optimizer = wrapped
            if kind == "dynamic":
                optimizer = keras.optimizers.LossScaleOptimizer(wrapped, dynamic_growth_steps=2)
            optimizer.build(trained)
        for _ in range(5):  # the dynamic scale doubles twice on the way
            scale = float(optimizer.scale_loss(tf.constant(1.0)))
            apply(strategy, optimizer, [g * scale for g in gradients], trained)
        residuals[kind] = residual_of(wrapped), values(trained)
    assert float(optimizer.scale_loss(tf.constant(1.0))) == 64
    return residuals


def test_residuals_are_in_unscaled_units(cluster):
    for residuals in cluster(WORKERS).run(scaled_steps):
        plain, trained = residuals.pop("plain")
        assert 0 < np.abs(plain).max() < 40  # five gradients of at most 5 or so
        for residual, weights in residuals.values():
            np.testing.assert_array_equal(residual, plain)  # scales are powers of two
            for mine, theirs in zip(weights, trained, strict=True):
                np.testing.assert_array_equal(mine, theirs)


# --- `fit`: models, callbacks, precision -------------------------------------------------------


def data(seed=0, samples=48):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, 40)).astype(np.float32), rng.integers(0, 3, samples)


def own_data(strategy, batch=8):
    dataset = tf.data.Dataset.from_tensor_slices(data(strategy.extended._id_in_cluster))
    return strategy.distribute_datasets_from_function(lambda _: dataset.batch(batch))


def classifier(strategy, optimizer, *layers, **compile_arguments):
    """A model with one kernel of 1,280 elements; `layers` come before its output."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((40,)),
                keras.layers.Dense(32, activation="relu"),
                *(make() for make in layers),
                keras.layers.Dense(3, dtype="float32"),
            ]
        )
        model.compile(
            optimizer(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            **compile_arguments,
        )
    return model


def stock_and_wrapped(make_inner):
    return {
        "stock": make_inner,
        "ratio 1": lambda: sc.ScaleComOptimizer(make_inner(), 1),
        "ratio 10": lambda: sc.ScaleComOptimizer(make_inner(), 10),
    }


def assert_wrapped_as_stock(results, tolerance=0):
    """Ratio 1 gives what the stock optimizer does; all workers the same, bit by bit."""
    for result in results:
        for way in result:
            for mine, first in zip(result[way], results[0][way], strict=True):
                np.testing.assert_array_equal(mine, first, err_msg=way)
        for wrapped, stock in zip(result["ratio 1"], result["stock"], strict=True):
            np.testing.assert_allclose(wrapped, stock, rtol=tolerance, atol=tolerance)


def fit_with_rates_from_callbacks(strategy):
    results = {}
    for way, optimizer in stock_and_wrapped(lambda: SGD(0.1, momentum=0.9)).items():
        model = classifier(strategy, optimizer, run_eagerly=True)
        callbacks = [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else 0.2),
            # Never content, so it divides by ten after each epoch.
            keras.callbacks.ReduceLROnPlateau("loss", 0.1, patience=0, min_delta=100.0),
        ]
        model.fit(own_data(strategy), epochs=3, verbose=0, callbacks=callbacks)
        # Halved by the scheduler at the start of epochs 2 and 3; the first plateau is a "best".
        rate = model.optimizer.learning_rate.numpy()
        results[way] = [rate, *values(model.trainable_variables)]
    return results


def test_callbacks_set_the_learning_rate(cluster):
    results = cluster(WORKERS).run(fit_with_rates_from_callbacks, timeout=90)
    assert_wrapped_as_stock(results)
    rates = {way: rate for way, (rate, *_) in results[0].items()}
    np.testing.assert_allclose(list(rates.values()), [0.2 / 4 / 100] * 3, rtol=1e-5)


def fit_with_averages(strategy):
    """SwapEMAWeights evaluates, and leaves behind, the averages."""
    results = {}
    for way, optimizer in stock_and_wrapped(
        lambda: SGD(0.1, use_ema=True, ema_momentum=0.8)
    ).items():
        model = classifier(strategy, optimizer, run_eagerly=True)
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        own = own_data(strategy)
        history = model.fit(own, epochs=2, validation_data=own, verbose=0, callbacks=[swap])
        results[way] = [
            *history.history["val_loss"],
            model.evaluate(own, verbose=0),
            *values(model.trainable_variables),
        ]
    return results


def test_averaged_weights_are_swapped_in(cluster):
    results = cluster(WORKERS).run(fit_with_averages, timeout=90)
    assert_wrapped_as_stock(results)
    for way in results[0].values():
        _, last_validation, evaluated, *_ = way
        np.testing.assert_allclose(evaluated, last_validation, rtol=1e-6)


def fit_frozen(strategy):
    """Trains with the first layer frozen, then, compiled anew, the whole model."""
    model = classifier(strategy, lambda: sc.ScaleComOptimizer(SGD(0.1), 10), run_eagerly=True)
    loss = model.loss
    first = model.layers[0]
    seen = [values(first.weights)]
    for trainable in (False, True):
        first.trainable = trainable
        with strategy.scope():
            optimizer = sc.ScaleComOptimizer(SGD(0.1), 10)
            model.compile(optimizer, loss, run_eagerly=True)
        model.fit(own_data(strategy), verbose=0)
        seen.append(values(first.weights))
        assert len(optimizer.residuals) == trainable  # the frozen kernel is the only large one
    return seen


def test_frozen_layers_stay_and_thaw(cluster):
    first, second = cluster(WORKERS).run(fit_frozen, timeout=90)
    before, frozen, thawed = first
    np.testing.assert_array_equal(frozen[0], before[0])
    assert (thawed[0] != frozen[0]).any()
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine[0], theirs[0])


class WordToWord(keras.Model):
    """Predicts a word from a word; one table is input and, if tied, output too."""

    def __init__(self, tied):
        super().__init__()
        self.table = keras.layers.Embedding(60, 20)
        self.out = None if tied else keras.layers.Dense(60)

    def call(self, ids):
        if self.out:
            return self.out(self.table(ids))
        return tf.matmul(self.table(ids), self.table.embeddings, transpose_b=True)


def fit_words(strategy, tied):
    # Few words, so that a batch has each of them several times.
    words = np.random.default_rng(strategy.extended._id_in_cluster).integers(0, 5, 48)
    results = {}
    for way, optimizer in stock_and_wrapped(lambda: SGD(0.5)).items():
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = WordToWord(tied)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer(), loss, run_eagerly=True)
        own = strategy.distribute_datasets_from_function(
            lambda _: tf.data.Dataset.from_tensor_slices((words, words[::-1].copy())).batch(12)
        )
        losses = model.fit(own, epochs=2, verbose=0).history["loss"]
        results[way] = [*losses, *values(model.trainable_variables)]
    return results


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_with_repeated_ids_and_tied_weights(cluster, tied):
    results = cluster(WORKERS).run(fit_words, tied, timeout=90)
    # The stock optimizer sums the slices of all workers, the wrapper first those of each.
    assert_wrapped_as_stock(results, tolerance=1e-6)
    for before, after, *_ in results[0].values():
        assert after < before


def fit_normalised(strategy, synchronized):
    """With momentum 0 the moving mean is that of the last batch."""
    model = classifier(
        strategy,
        lambda: sc.ScaleComOptimizer(SGD(0.1), 10),
        lambda: keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.0),
    )
    model.fit(own_data(strategy, batch=48), verbose=0)
    before = values(model.layers[0].weights)
    model.fit(own_data(strategy, batch=48), verbose=0)
    x, _ = data(strategy.extended._id_in_cluster)
    hidden = np.maximum(x @ before[0] + before[1], 0)
    norm = model.layers[1]
    return {
        "trained": values(model.trainable_variables),
        "moving": values([norm.moving_mean, norm.moving_variance]),
        "hidden": hidden,
    }


@pytest.mark.parametrize("synchronized", [False, True])
def test_batch_statistics_travel_uncompressed(cluster, synchronized):
    results = cluster(WORKERS).run(fit_normalised, synchronized, timeout=90)
    everything = np.concatenate([result["hidden"] for result in results])
    for result in results:
        for mine, first in zip(result["trained"], results[0]["trained"], strict=True):
            np.testing.assert_array_equal(mine, first)
        seen = everything if synchronized else result["hidden"]
        mean, variance = result["moving"]
        np.testing.assert_allclose(mean, seen.mean(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(variance, seen.var(axis=0), rtol=1e-3, atol=1e-5)


def train_two_models(strategy, order):
    """Trains models "a" and "b" batch by batch in an order such as "abab"; returns the weights."""
    models = {
        "a": classifier(strategy, lambda: sc.ScaleComOptimizer(SGD(0.1), 10)),
        "b": classifier(strategy, lambda: sc.ScaleComOptimizer(keras.optimizers.Adam(0.01), 20)),
    }
    x, y = data(strategy.extended._id_in_cluster, samples=8)
    for name in order:
        models[name].train_on_batch(x, y)
    return {name: values(model.trainable_variables) for name, model in models.items()}


def test_several_models_and_optimizers_in_one_process(cluster):
    alternately = cluster(WORKERS).run(train_two_models, "abababab", timeout=90)
    in_turn = cluster(WORKERS).run(train_two_models, "aaaabbbb", timeout=90)
    for name in "ab":
        for result in alternately + in_turn:
            for mine, first in zip(result[name], alternately[0][name], strict=True):
                np.testing.assert_array_equal(mine, first)


def fit_in_mixed_precision(strategy, policy):
    keras.config.set_dtype_policy(policy)
    model = classifier(strategy, lambda: sc.ScaleComOptimizer(SGD(0.1), 10))
    losses = model.fit(own_data(strategy), epochs=3, verbose=0).history["loss"]
    # Keras puts a LossScaleOptimizer around under mixed_float16.
    wrapped = getattr(model.optimizer, "inner_optimizer", None)
    optimizer = wrapped if isinstance(wrapped, sc.ScaleComOptimizer) else model.optimizer
    assert optimizer.compression_report().ratio > 1 and optimizer.skipped_steps.numpy() == 0
    return losses, residual_of(optimizer), values(model.trainable_variables)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_learns_with_finite_residuals(cluster, policy):
    results = cluster(WORKERS).run(fit_in_mixed_precision, policy, timeout=90)
    for losses, residual, weights in results:
        assert losses[-1] < losses[0] and np.isfinite(losses).all()
        # Sums of gradients of a mean over few samples: far below one loss scale (32,768).
        assert 0 < np.abs(residual).max() < 10
        for mine, first in zip(weights, results[0][2], strict=True):
            np.testing.assert_array_equal(mine, first)


def compile_by_xla(strategy):
    model = classifier(strategy, lambda: sc.ScaleComOptimizer(SGD(0.1), 10), jit_compile=True)
    traced = []
    model.train_step = traced.append
    try:
        model.fit(own_data(strategy), verbose=0)
    except ValueError as error:
        return str(error), len(traced)
    return "no error", len(traced)


def test_xla_is_refused_before_a_step_is_traced(cluster):
    for message, traces in cluster(WORKERS).run(compile_by_xla):
        assert "jit_compile=True" in message and traces == 0
