"""An LSTM forecasts a temperature from three sensors, until it no longer improves."""

import keras
import numpy as np
import outcome

import tf_scalecom as sc

PAST, FUTURE, BATCH = 24, 6, 128

keras.utils.set_random_seed(0)
hours = np.arange(2000)
rng = np.random.default_rng(0)
day, year = 2 * np.pi * hours / 24, 2 * np.pi * hours / 8766
temperature = 10 * np.sin(year) + 5 * np.sin(day) + np.cumsum(rng.normal(0, 0.1, len(hours)))
pressure = 1013 - 0.4 * temperature + rng.normal(0, 1, len(hours))
humidity = 60 + 10 * np.cos(day) + rng.normal(0, 2, len(hours))
series = np.stack([temperature, pressure, humidity], axis=-1).astype("float32")
split = 1500
series = (series - series[:split].mean(axis=0)) / series[:split].std(axis=0)


def windows(rows):
    return keras.utils.timeseries_dataset_from_array(
        rows[:-FUTURE],
        rows[PAST + FUTURE - 1 :, :1],
        sequence_length=PAST,
        batch_size=BATCH,
    )


train, validation = windows(series[:split]), windows(series[split:])

strategy = sc.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((PAST, 3)), keras.layers.LSTM(16), keras.layers.Dense(1)])
    model.compile(
        optimizer=sc.ScaleComOptimizer(keras.optimizers.RMSprop(0.01), compression_ratio=1),
        loss="mse",
        metrics=["mae"],
    )

best = "best.weights.h5"
history = model.fit(
    train,
    epochs=6,
    validation_data=validation,
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(factor=0.3, patience=0, min_delta=0.01),
        keras.callbacks.EarlyStopping(patience=2, min_delta=0.01, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(best, save_best_only=True, save_weights_only=True),
    ],
    verbose=0,
)
model.load_weights(best)
outcome.tell(history.history, model.weights)
