"""What a plan needs to know of a machine, measured on this one."""

import statistics
import time
from collections.abc import Callable

import keras
import tensorflow as tf

from tf_scalecom.base.raised_at import told

_SECONDS = 1.0
_LEAST_RUNS = 5
_MEMORY_ELEMENTS = 25_000_000  # 100 MB: far larger than caches


def step_seconds(model: keras.Model, batch: int) -> float:
    """Median time of a training step of one replica, nothing exchanged.

    Forward, backward and update, by the model's optimizer if it is compiled, else by SGD. The data
    are random numbers, and zeros for integers; the loss is the mean square of all outputs. The
    model's weights change.

    Args:
        model: built, with inputs whose sizes are known but for the batch.
        batch: samples per step.

    Raises:
        ValueError: the inputs' sizes or dtypes do not say what to feed, or a step of such a batch
            fails.
    """
    try:
        return _step_seconds(model, batch)
    except _Unmeasurable:
        raise
    except Exception as error:  # of the model's own layers, or for want of memory
        raise ValueError(
            f"expected a batch of which a step can be made here; received {batch:,} samples: "
            f"{told(error)}. Give a smaller one, or --compute-ms."
        ) from error


class _Unmeasurable(ValueError):
    """The model does not say what to feed."""


def _step_seconds(model, batch):
    inputs = tf.nest.map_structure(lambda tensor: _sample(tensor, batch), _inputs(model))
    optimizer = getattr(model, "optimizer", None) or keras.optimizers.SGD(0.0)
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(inputs, training=True))
            loss = sum(tf.reduce_mean(tf.square(tf.cast(y, tf.float32))) for y in outputs)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, variables), variables)
        return loss

    return _median_seconds(lambda: step().numpy())


def memory_bytes_per_second() -> float:
    """Bytes that an addition in place reads and writes per second, on the device that trains."""
    total = tf.Variable(tf.zeros([_MEMORY_ELEMENTS]))
    addend = tf.Variable(tf.zeros([_MEMORY_ELEMENTS]))

    @tf.function
    def add():
        total.assign_add(addend)
        return total[0]

    return 3 * 4 * _MEMORY_ELEMENTS / _median_seconds(lambda: add().numpy())


def _median_seconds(run: Callable[[], object]) -> float:
    """Median of as many runs as fit in a second; `run` returns when it is done."""
    run()  # traces
    run()  # creates what the first step of an optimizer creates
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while (start := time.perf_counter()) <= end or len(times) < _LEAST_RUNS:
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _inputs(model):
    """Symbolic inputs, in the structure that the model takes."""
    try:
        return model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    except (AttributeError, ValueError):
        raise _Unmeasurable(
            "expected a functional or sequential model, to measure its step; received "
            f"{type(model).__name__}, which does not say what it takes. Measure it yourself, and "
            "give --compute-ms."
        ) from None


def _sample(symbol, batch):
    shape, dtype = (batch, *symbol.shape[1:]), tf.as_dtype(symbol.dtype)
    if None in shape or not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        raise _Unmeasurable(
            "expected inputs of numbers, of sizes known but for the batch, to measure a "
            f"step; received {symbol.name} of shape {symbol.shape} and dtype {dtype.name}. Measure "
            "it yourself, and give --compute-ms."
        )
    return tf.random.normal(shape, dtype=dtype) if dtype.is_floating else tf.zeros(shape, dtype)
