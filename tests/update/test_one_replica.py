"""Who trains alone by mistake is told so, and with it which kernels there would be."""

import os
import shutil
import sys

import pytest
from package_source import copy_source, run

from tf_scalecom.ops import native

TRAIN = """
import keras, numpy, tf_scalecom as sc
with sc.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((50,)), keras.layers.Dense(40)])
    model.compile(sc.ScaleComOptimizer(keras.optimizers.SGD(0.1)), "mse")
model.fit(numpy.ones((8, 50)), numpy.ones((8, 40)))
"""
ALONE = "WARNING:absl:tf_scalecom: one replica, nothing to exchange: gradients pass through. For"


@pytest.mark.slow
def test_a_forgotten_tf_config_is_a_warning_and_so_are_sources_before_the_installed_package(
    tmp_path,
):
    """In a clone beside an installed package, as `pip install .` leaves it."""
    clone = copy_source(tmp_path / "clone")
    site = tmp_path / "site"
    installed = site / "tf_scalecom" / "ops" / native.LIBRARY.name
    installed.parent.mkdir(parents=True)
    shutil.copy(native.LIBRARY, installed)
    metadata = site / "tf_scalecom-0.1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: tf-scalecom\nVersion: 0.1.0\n")
    assert "TF_CONFIG" not in os.environ
    said = run(sys.executable, "-c", TRAIN, cwd=clone, PYTHONPATH=str(site))
    assert ALONE in said
    assert f"expected the installed package, with {installed}; received the one in {clone}" in said


@pytest.mark.slow
def test_a_cluster_of_one_worker_is_meant(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    said = run(sys.executable, "-m", "tf_scalecom", "run", "-n", "1", script, cwd=tmp_path)
    assert "nothing to exchange" not in said
