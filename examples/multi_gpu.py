"""One process on all its GPUs; where there is none, on the CPU as two devices.

python examples/multi_gpu.py
"""

import fashion
import keras
import tensorflow as tf

import tf_scalecom as sc

if not tf.config.list_physical_devices("GPU"):
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
strategy = tf.distribute.MirroredStrategy(
    [device.name for device in devices], cross_device_ops=sc.ScaleComAllReduce.for_devices()
)
keras.utils.set_random_seed(0)
train, test = fashion.load()

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=sc.ScaleComOptimizer(keras.optimizers.SGD(0.1)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(*train, batch_size=64, epochs=2, verbose=2)
_, accuracy = model.evaluate(*test, verbose=0)
print(f"{len(devices)} devices, test accuracy {accuracy:.3f}")
print(model.optimizer.compression_report())
