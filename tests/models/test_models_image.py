"""The image networks of the paper: their sizes and rates, and their data."""

import math

import keras
import networks
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
import tfds_images
import tfds_source
from hyperparameters import ratio_of, stated_ratios

from tf_scalecom.wire.auto_ratio import auto_ratios

ALONE = tf.distribute.get_strategy()

# By network: how the headings of its two blocks in models/hyperparameters.md begin.
BLOCKS = {
    "resnet18": "ResNet-18, ImageNet",
    "resnet50": "ResNet-50, ImageNet",
    "mobilenet_v2": "MobileNetV2, ImageNet",
    "cifar_resnet34": "ResNet-34, CIFAR-10",
}


# Weights (the first are the public counts), and elements / elements sent: of the package at the
# ratio that the blocks of models/hyperparameters.md ask for, and of the rule with vectors at 400x.
@pytest.mark.parametrize(
    ("network", "image_shape", "num_classes", "weights", "asked", "sent", "vectors_sparse"),
    [
        ("resnet18", (224, 224, 3), 1_000, 11_689_512, "auto", 105.2, 116.3),
        ("resnet34", (224, 224, 3), 1_000, 21_797_672, "auto", 86.8, 93.5),
        ("resnet50", (224, 224, 3), 1_000, 25_557_032, "auto", 80.8, 97.4),
        ("mobilenet_v2", (224, 224, 3), 1_000, 3_504_872, "auto", 60.9, 167.4),
        ("cifar_resnet34", (32, 32, 3), 10, 21_282_122, 92, 85.7, 202.7),
    ],
)
def test_weights_and_rates(network, image_shape, num_classes, weights, asked, sent, vectors_sparse):
    model = networks.NETWORKS[network](image_shape=image_shape, num_classes=num_classes)
    assert model.output_shape == (None, num_classes)
    variables = model.trainable_variables
    sizes = [math.prod(v.shape) for v in variables]
    assert sum(sizes) == weights

    ratio = ratio_of(variables, asked)
    assert ratio == pytest.approx(sent, abs=0.05)
    if network in BLOCKS:
        assert stated_ratios(BLOCKS[network]) == [round(ratio)] * 2

    ratios = auto_ratios(variables, [v.path for v in variables])
    by_rule = sum(
        size / (ratio if len(v.shape) > 1 else 400)
        for v, size, ratio in zip(variables, sizes, ratios, strict=True)
    )
    assert weights / by_rule == pytest.approx(vectors_sparse, abs=0.05)


def test_a_residual_network_starts_as_its_shortcuts():
    """The last normalisation of each block starts at 0, and no other."""
    model = networks.NETWORKS["resnet18"](image_shape=(32, 32, 3), num_classes=10)
    layers = keras.layers
    last = [x.input[1]._keras_history.operation for x in model.layers if isinstance(x, layers.Add)]
    zero = [
        x for x in model.layers if isinstance(x, layers.BatchNormalization) and not np.any(x.gamma)
    ]
    assert len(last) == 8 and {x.name for x in last} == {x.name for x in zero}


@pytest.fixture
def mocked_data():
    with tfds.testing.mock_data(num_examples=6):
        yield


def batches_of(dataset, count):
    return [(x.numpy(), y.numpy()) for x, y in dataset.take(count)]


@pytest.mark.usefixtures("mocked_data")
@pytest.mark.parametrize("load", [tfds_images.cifar10, tfds_images.imagenet])
def test_training_images_are_augmented_alike_for_a_seed(load, tmp_path):
    data = load(str(tmp_path))

    def training(seed):
        return batches_of(data.training(ALONE, batch_per_worker=4, seed=seed), 3)

    first, again, other = training(1), training(1), training(2)
    for (images, labels), (images_again, labels_again) in zip(first, again, strict=True):
        assert images.shape == (4, *data.image_shape) and images.dtype == np.float32
        assert labels.dtype == np.int32 and labels.max() < data.num_classes
        np.testing.assert_array_equal(images, images_again)
        np.testing.assert_array_equal(labels, labels_again)
    assert np.abs(first[0][0] - other[0][0]).max() > 0.1
    assert np.abs(first[0][0].mean()) < 1, "about standardised"


@pytest.mark.usefixtures("mocked_data")
@pytest.mark.parametrize("load", [tfds_images.cifar10, tfds_images.imagenet])
def test_test_images_come_once_and_unchanged(load, tmp_path):
    data = load(str(tmp_path))
    first, again = (batches_of(data.test(ALONE, batch_per_worker=4), 9) for _ in range(2))
    assert [len(labels) for _, labels in first] == [4, 2]
    np.testing.assert_array_equal(first[1][0], again[1][0])


def test_an_image_of_imagenet_is_cut_from_its_middle(tmp_path):
    data = tfds_images.imagenet(str(tmp_path))
    picture = np.zeros((160, 320, 3), np.uint8)
    picture[10:150, 90:230] = 255  # 140 x 140: 7/8 of the shorter side
    jpeg = tf.io.encode_jpeg(picture, quality=100)
    prepared = data.prepare(jpeg).numpy()
    white = (255 - np.array(tfds_images.IMAGENET_MEAN)) / tfds_images.IMAGENET_DEVIATION
    assert np.abs(prepared - white).mean() < 0.05


def test_workers_read_disjoint_parts_that_make_up_the_whole(tmp_path):
    tfds.testing.DummyDataset(data_dir=tmp_path).download_and_prepare()  # of the numbers 0, 1, 2

    def part(worker):
        context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=worker)
        dataset = tfds_source.read("dummy_dataset", "train", str(tmp_path), context)
        return [int(each["id"]) for each in dataset]

    first, second = part(0), part(1)
    assert sorted([len(first), len(second)]) == [1, 2]
    assert sorted(first + second) == [0, 1, 2]


def test_data_that_was_not_prepared_is_an_error_that_says_how(tmp_path):
    with pytest.raises(ValueError, match=r"tfds build cifar10 --data_dir .*"):
        tfds_source.read("cifar10", "train", str(tmp_path), tf.distribute.InputContext())
