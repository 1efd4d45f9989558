"""The package's sources in a folder of their own, and commands run on them."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# One step of a model on two logical CPUs.
TRAIN = """
import keras, numpy, tensorflow as tf
import tf_scalecom as sc
print("imported from", sc.__file__)
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
operations = sc.ScaleComAllReduce.for_devices(["CPU:0", "CPU:1"])
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=operations).scope():
    model = keras.Sequential([keras.Input((50,)), keras.layers.Dense(40), keras.layers.Dense(1)])
    model.compile(sc.ScaleComOptimizer(keras.optimizers.SGD(0.1)), "mse")
model.fit(numpy.ones((8, 50)), numpy.ones(8), verbose=0)
residual = model.optimizer.residuals[model.weights[0].path][0]
print("trained", numpy.abs(residual).max() > 0)
"""


def run(*command, cwd, timeout=300, **variables) -> str:
    """Output of a command that succeeds, both streams."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **variables}
    process = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout + process.stderr


def copy_source(folder: Path) -> Path:
    """Copies what the package is built from, without anything built."""
    ignore = shutil.ignore_patterns("build", "*.so", "__pycache__")
    for name in ("tf_scalecom", "custom_ops"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    return folder
