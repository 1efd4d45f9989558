"""Keras's `fit`, in this process alone or, unchanged, on many workers.

python examples/fit.py
python -m tf_scalecom run -n 2 examples/fit.py
"""

import fashion
import keras

import tf_scalecom as sc

strategy = sc.MultiWorkerMirroredStrategy()  # reads TF_CONFIG; without one, trains alone
is_chief = not strategy.cluster_resolver.task_id
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
        optimizer=sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), compression_ratio=100),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

# All workers pass the same arrays and the batch of all together; each takes its part.
model.fit(
    *train,
    batch_size=64,
    epochs=2,
    validation_data=test,
    callbacks=[sc.callbacks.CompressionMonitor()],
    verbose=2 if is_chief else 0,
)
_, accuracy = model.evaluate(*test, verbose=0)  # on all workers
if is_chief:
    print(f"test accuracy {accuracy:.3f}")
    print(model.optimizer.compression_report())
