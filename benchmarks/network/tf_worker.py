"""One TensorFlow worker of the network benchmark: this package, and TensorFlow's own strategy."""

import argparse
import functools

import keras
import numpy as np
import tensorflow as tf
from matrix import (
    BFLOAT16,
    FLOOR,
    INT8,
    MASKED,
    MODELS,
    MWMS,
    ONE_BUCKET,
    OURS,
    OWNERS,
    POWER_SGD,
    SHARES,
    SMALL_BUCKETS,
)
from serve import serve

import tf_scalecom as sc


class Float16SGD(keras.optimizers.SGD):
    """Casts gradients to float16 for TensorFlow's all-reduce, which has no option for it."""

    def _all_reduce_sum_gradients(self, grads_and_vars):
        halves = [(tf.cast(g, tf.float16), v) for g, v in grads_and_vars]
        sums = super()._all_reduce_sum_gradients(halves)
        return [(tf.cast(g, tf.float32), v) for g, v in sums]


def sgd():
    return keras.optimizers.SGD(0.01)


@functools.cache
def ours(bytes_per_pack=0):
    """This package's strategy with a size of buckets; 0 is its default."""
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    return sc.MultiWorkerMirroredStrategy(communication_options=options)


@functools.cache
def network_of(model, strategy):
    """The network; arms of one strategy share it, to save memory."""
    with strategy.scope():
        return keras.Sequential(
            [keras.Input((model.widths[0],))]
            + [keras.layers.Dense(width, activation="relu") for width in model.widths[1:-1]]
            + [keras.layers.Dense(model.widths[-1])]
        )


def training_step(model, strategy, make_optimizer):
    """A traced training step, which returns when it is done, and its optimizer."""
    network = network_of(model, strategy)
    with strategy.scope():
        optimizer = make_optimizer()
        optimizer.build(network.trainable_variables)
    variables = network.trainable_variables
    resolver = strategy.cluster_resolver
    rng = np.random.default_rng(resolver.task_id if resolver else 0)
    x = tf.constant(rng.normal(size=(model.batch, model.widths[0])), tf.float32)
    y = tf.constant(rng.integers(0, model.widths[-1], model.batch))

    def replica_step():
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, network(x), from_logits=True)
            loss = keras.ops.mean(losses) / strategy.num_replicas_in_sync
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    step = tf.function(lambda: strategy.run(replica_step))
    return lambda: step().numpy(), optimizer


def main():
    """Serves the arms of TensorFlow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    model = MODELS[parser.parse_args().model]
    tf.config.threading.set_intra_op_parallelism_threads(1)

    def compressed(**options):
        return lambda: sc.ScaleComOptimizer(sgd(), model.compression_ratio, **options)

    def reduced_by(method):
        return lambda: sc.CompressedOptimizer(sgd(), method)

    # Before any of this package's: a process has one server, which TensorFlow's strategy would
    # start once more.
    stock = tf.distribute.MultiWorkerMirroredStrategy()
    arms = {
        FLOOR: lambda: (tf.distribute.OneDeviceStrategy("/cpu:0"), sgd),
        MWMS: lambda: (stock, sgd),
        "MWMS fp16": lambda: (stock, lambda: Float16SGD(0.01)),
        OURS: lambda: (ours(), compressed()),
        BFLOAT16: lambda: (ours(), compressed(value_dtype="bfloat16")),
        INT8: lambda: (ours(), compressed(value_dtype="int8")),
        "ours, chunk_keep 10": lambda: (ours(), compressed(chunk_keep=10)),
        SHARES: lambda: (ours(), reduced_by(sc.methods.SharesTopK(model.compression_ratio))),
        # At the ratio of about the bytes that ours has.
        OWNERS: lambda: (
            ours(),
            reduced_by(
                sc.methods.OwnersTopK(0.92 * model.compression_ratio, value_dtype="bfloat16")
            ),
        ),
        POWER_SGD: lambda: (ours(), reduced_by(sc.methods.PowerSGD(rank=2))),
        "ours, 32 KiB": lambda: (ours(32 << 10), compressed()),
        "ours, 64 KiB": lambda: (ours(64 << 10), compressed()),
        SMALL_BUCKETS: lambda: (ours(128 << 10), compressed()),
        ONE_BUCKET: lambda: (ours(1 << 30), compressed()),
        # Under a strategy not ours there is no broadcast, and one bucket.
        MASKED: lambda: (stock, compressed()),
    }

    def build(arm):
        strategy, make_optimizer = arms[arm]()
        step, optimizer = training_step(model, strategy, make_optimizer)
        about = {"framework": f"TensorFlow {tf.__version__}"}
        if not isinstance(optimizer, sc.CompressedOptimizer):
            return step, about
        report = optimizer.compression_report()
        return step, about | {
            "claimed_bytes": report.bytes_sent,
            "compressed_elements": sum(r.elements for r in report.rows if r.kept < r.elements),
        }

    serve(build)


if __name__ == "__main__":
    main()
