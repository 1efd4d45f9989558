"""Trains on the workers of a Ray cluster: `python ray_train.py --workers 4 --storage FOLDER`.

The folder gets the backups and, in the end, the model: `model.keras`.
"""

import argparse
import os

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def train(config):
    """One worker's part. Ray has set TF_CONFIG; TensorFlow is first imported here, not before."""
    # With it, workers that are started again draw what they drew before: bit for bit the same.
    os.environ["TF_SCALECOM_SEED"] = str(config["seed"])

    import keras
    import numpy as np

    import tf_scalecom as sc

    strategy = sc.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((100,)), keras.layers.Dense(50, "relu"), keras.layers.Dense(1)]
        )
        model.compile(sc.ScaleComOptimizer(keras.optimizers.SGD(0.01)), "mse")
    inputs = np.random.default_rng(0).normal(size=(256, 100)).astype("float32")
    # On all workers; each takes its part of every batch.
    history = model.fit(
        inputs, inputs[:, :1], batch_size=32, epochs=config["epochs"], verbose=0,
        callbacks=[sc.callbacks.BackupAndRestore(f"{config['storage']}/backup")],
    )  # fmt: skip
    model.save(f"{config['storage']}/model.keras")
    report = model.optimizer.compression_report()
    epochs, losses = history.epoch, history.history["loss"]
    print(
        f"{report}\nreplicas {report.num_replicas}, loss {losses[-1]:.4f}, from epoch {epochs[0]}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpus", action="store_true", help="a GPU for each worker")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of all that has none of its own")
    parser.add_argument("--storage", required=True, help="folder that all nodes share")
    args = parser.parse_args()
    trainer = TensorflowTrainer(
        train,
        train_loop_config={"epochs": args.epochs, "storage": args.storage, "seed": args.seed},
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.gpus),
        # When a worker fails, Ray starts all of them again: training goes on from the backup.
        run_config=RunConfig(
            storage_path=args.storage, failure_config=FailureConfig(max_failures=3)
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
