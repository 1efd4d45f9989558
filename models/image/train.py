"""Trains an image classifier: alone, or on the workers that TF_CONFIG names.

Examples:
    python models/image/train.py --epochs 1
    python -m tf_scalecom run -n 2 models/image/train.py --compression_ratio 100
    python models/image/train.py --network resnet50 --dataset imagenet2012 --data_dir /data/tfds
"""

import pathlib
import sys

import keras
from absl import app, flags

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # what all tasks share

import image_data
import networks
import shared_flags
import tfds_images
import training

FLAGS = flags.FLAGS
shared_flags.define_flags(learning_rate=0.4)
shared_flags.define_sgd_flags()
flags.DEFINE_enum("network", "convnet", networks.NETWORKS, "What is trained.")
flags.DEFINE_enum(
    "dataset",
    "fashion_mnist",
    ["fashion_mnist", "cifar10", "imagenet2012"],
    "What it is trained on; the latter two must lie under --data_dir, prepared by `tfds build`.",
)


def load_data(workers: training.Workers):
    """Returns (name, image shape, number of classes, training batches, test batches)."""
    if FLAGS.dataset == "fashion_mnist":
        data = image_data.load(pathlib.Path(FLAGS.data_dir))
        return (
            data.name,
            (28, 28, 1),
            10,
            image_data.training_dataset(data, workers.global_batch, FLAGS.seed),
            image_data.test_dataset(data, 500 * workers.count),
        )
    builder = {"cifar10": tfds_images.cifar10, "imagenet2012": tfds_images.imagenet}
    data = builder[FLAGS.dataset](FLAGS.data_dir)
    return (
        data.name,
        data.image_shape,
        data.num_classes,
        data.training(workers.strategy, FLAGS.batch_per_worker, FLAGS.seed),
        data.test(workers.strategy, FLAGS.batch_per_worker),
    )


def main(argv):
    """Builds strategy, data and model from the flags, and fits."""
    if argv[1:]:
        raise app.UsageError(f"Expected flags only; received {argv[1:]}. See --help.")
    workers = training.start()
    name, image_shape, num_classes, batches, test = load_data(workers)
    with workers.strategy.scope():
        model = networks.NETWORKS[FLAGS.network](image_shape=image_shape, num_classes=num_classes)
        model.compile(
            optimizer=training.sgd(workers),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    workers.say(
        f"{FLAGS.network} on {name}: {model.count_params():,} parameters, {workers.count} workers"
    )
    history, meter = training.fit(workers, model, batches, test)
    training.finish(
        workers,
        model,
        meter,
        dataset=name,
        recipe=training.sgd_recipe(),
        test_accuracy=history["val_accuracy"][-1],
    )


if __name__ == "__main__":
    app.run(main)
