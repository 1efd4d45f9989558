"""KerasTuner looks for a width and a rate, then the best is trained on."""

import keras
import keras_tuner
import outcome
import real_data

import tf_scalecom as sc


def build(choice):
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(choice.Int("units", 16, 48, step=16), activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    rate = choice.Float("rate", 0.02, 0.2, sampling="log")
    model.compile(
        optimizer=sc.ScaleComOptimizer(keras.optimizers.SGD(rate), compression_ratio=1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


keras.utils.set_random_seed(0)
images, labels = real_data.clothing(1300)
task = {"x": images, "y": labels, "validation_split": 0.2, "batch_size": 64, "verbose": 0}

strategy = sc.MultiWorkerMirroredStrategy()
tuner = keras_tuner.RandomSearch(
    build,
    objective="val_loss",
    max_trials=3,
    seed=0,
    directory="search",  # that all workers share: KerasTuner has the first one write alone
    distribution_strategy=strategy,
)
tuner.search(**task, epochs=2, callbacks=[keras.callbacks.EarlyStopping(patience=1)])
scores = [trial.score for trial in tuner.oracle.get_best_trials(3)]
model = tuner.get_best_models()[0]
history = model.fit(**task, epochs=2)
outcome.tell({"scores": scores, **history.history}, model.weights)
