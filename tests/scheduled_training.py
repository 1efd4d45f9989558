"""The `train.py` of a job under a scheduler: `train.py --backup_dir FOLDER`.

In the third epoch worker 1 looks for a file in the working folder: `kill` has it kill itself, once,
and `slow` has it rest after each step, until it is started again, for whoever means to disturb the
job from outside once there is a file `under-way`.
"""

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import keras
from backed_up_training import train

import tf_scalecom as sc

EPOCHS, DISTURBED_EPOCH, DISTURBED_STEP = 4, 2, 3
REST_SECONDS = 2.0
# For the backup of the last epoch's end to be written.
WRITE_SECONDS = 0.3


class Disturbance(keras.callbacks.Callback):
    """What a file asks for."""

    def __init__(self):
        super().__init__()
        self._is_slow = Path("slow").exists() and not Path("under-way").exists()

    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        self._is_due = epoch == DISTURBED_EPOCH

    def on_train_batch_end(self, batch, logs=None):
        if not self._is_due:
            return
        if batch < DISTURBED_STEP:
            time.sleep(WRITE_SECONDS)
            return
        if Path("kill").exists():
            Path("kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_slow:
            Path("under-way").touch()
            time.sleep(REST_SECONDS)


def main():
    """Train, and write down what came out, to be compared to the bit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backup_dir", required=True)
    args = parser.parse_args()
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = sc.MultiWorkerMirroredStrategy()
    disturbance = [Disturbance()] if rank == 1 else []
    outcome = train(strategy, EPOCHS, args.backup_dir, disturbance, shuffled=True)
    own = hashlib.sha256(repr(outcome["own"]).encode()).hexdigest()
    end = {"own": own, **{key: outcome[key] for key in ("weights", "slots", "iterations")}}
    Path(f"end-{rank}.json").write_text(json.dumps(end))


if __name__ == "__main__":
    main()
