"""Trains the convolutional network on Fashion-MNIST: alone, or on the workers that TF_CONFIG names.

Examples:
    python models/image/train.py --epochs 1
    python -m tf_scalecom run -n 2 models/image/train.py --compression_ratio 100
"""

import json
import logging
import pathlib

import convnet
import image_data
import keras
import step_meter
import tensorflow as tf
from absl import app, flags

import tf_scalecom as sc

FLAGS = flags.FLAGS
flags.DEFINE_float(
    "compression_ratio",
    None,
    "Gradient elements per element sent. Without it the inner optimizer runs alone: dense.",
)
flags.DEFINE_float("beta", 0.3, "Low-pass filter of the residual; 1 is plain error feedback.")
flags.DEFINE_integer("chunk_keep", 10, "Elements kept per chunk; 1 is the paper's selection.")
flags.DEFINE_integer("warmup_steps", 100, "Steps without compression at the start.")
flags.DEFINE_float("learning_rate", 0.4, "Peak learning rate.")
flags.DEFINE_float("momentum", 0.0, "Momentum of SGD.")
flags.DEFINE_float(
    "ramp", 0.08, "Share of the steps over which the learning rate rises; then it falls to 0."
)
flags.DEFINE_integer("batch_per_worker", 32, "Images per worker and step.")
flags.DEFINE_integer("epochs", 5, "Epochs; each ends with an evaluation on the test images.")
flags.DEFINE_integer("steps_per_epoch", 750, "Training steps per epoch.")
flags.DEFINE_integer("seed", 0, "Seed of the initial weights and of the order of the data.")
flags.DEFINE_integer("intra_op_threads", 1, "Threads one operation may use, per worker.")
flags.DEFINE_string("data_dir", "data", "Where data sets are unpacked.")
flags.DEFINE_string("result", None, "File the chief writes its measurements to, as JSON.")


def learning_rate_schedule() -> keras.optimizers.schedules.LearningRateSchedule:
    """Rises linearly from 0 to the peak, then falls to 0 along a cosine."""
    steps = FLAGS.epochs * FLAGS.steps_per_epoch
    ramp_steps = round(FLAGS.ramp * steps)
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=FLAGS.learning_rate,
        warmup_steps=ramp_steps,
        decay_steps=steps - ramp_steps,
    )


def build_optimizer() -> keras.optimizers.Optimizer:
    """SGD, wrapped when a compression ratio is given."""
    sgd = keras.optimizers.SGD(learning_rate_schedule(), momentum=FLAGS.momentum)
    if FLAGS.compression_ratio is None:
        return sgd
    return sc.ScaleComOptimizer(
        sgd,
        compression_ratio=FLAGS.compression_ratio,
        beta=FLAGS.beta,
        chunk_keep=FLAGS.chunk_keep,
        warmup_steps=FLAGS.warmup_steps,
    )


def recipe() -> str:
    """The training settings in words."""
    return (
        f"SGD, peak learning rate {FLAGS.learning_rate}, momentum {FLAGS.momentum}, "
        f"{FLAGS.ramp:.0%} linear ramp then cosine, {FLAGS.batch_per_worker} images per worker, "
        f"seed {FLAGS.seed}"
    )


def compression() -> str:
    """The compression settings in words."""
    return (
        f"{FLAGS.compression_ratio:g}x, beta {FLAGS.beta}, chunk_keep {FLAGS.chunk_keep}, "
        f"{FLAGS.warmup_steps} steps of dense warm-up"
    )


def main(argv):
    """Builds strategy, data and model from the flags, and fits."""
    if argv[1:]:
        raise app.UsageError(f"Expected flags only; received {argv[1:]}. See --help.")
    tf.get_logger().setLevel(logging.WARNING)  # it tells of every collective it traces
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.intra_op_threads)
    keras.utils.set_random_seed(FLAGS.seed)
    strategy = sc.MultiWorkerMirroredStrategy()
    num_workers = len(strategy.cluster_resolver.cluster_spec().as_dict().get("worker", ["alone"]))
    is_chief = not strategy.cluster_resolver.task_id

    data = image_data.load(pathlib.Path(FLAGS.data_dir))
    training = image_data.training_dataset(data, FLAGS.batch_per_worker * num_workers, FLAGS.seed)
    test = image_data.test_dataset(data, 500 * num_workers)
    with strategy.scope():
        model = convnet.build_convnet()
        model.compile(
            optimizer=build_optimizer(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    if is_chief:
        print(
            f"{data.name}: {len(data.train_images):,} training images, "
            f"{model.count_params():,} parameters, {num_workers} workers",
            flush=True,
        )

    meter = step_meter.StepMeter(num_workers, ignored_steps=FLAGS.warmup_steps + 10)
    history = model.fit(
        training,
        epochs=FLAGS.epochs,
        steps_per_epoch=FLAGS.steps_per_epoch,
        shuffle=False,  # the data set shuffles itself; Keras would warn that it cannot
        validation_data=test,
        verbose=int(is_chief),  # one progress bar is enough
        callbacks=[meter],
    )
    if is_chief and FLAGS.result:
        measured = {
            "dataset": data.name,
            "parameters": model.count_params(),
            "workers": num_workers,
            "steps": FLAGS.epochs * FLAGS.steps_per_epoch,
            "recipe": recipe(),
            "test_accuracy": history.history["val_accuracy"][-1],
            "seconds_per_step": meter.seconds_per_step,
            "ignored_steps": meter.ignored_steps,
            "loopback_bytes": meter.bytes_per_step_and_worker,
        }
        if FLAGS.compression_ratio is not None:
            report = model.optimizer.compression_report()
            measured |= {
                "compression": compression(),
                "bytes_dense": report.bytes_dense,
                "bytes_sent": report.bytes_sent,
            }
        pathlib.Path(FLAGS.result).write_text(json.dumps(measured))


if __name__ == "__main__":
    app.run(main)
