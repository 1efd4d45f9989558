"""One worker of a training run that does not end by itself: `faulty_worker.py FOLDER OPTIMIZER`.

It reports in FOLDER once training is under way. What goes wrong with it then is done to it from
outside, or asked for by an option that says which worker it is about.
"""

import argparse
import ctypes
import json
import os
import signal
from pathlib import Path

import keras
import tensorflow as tf

import tf_scalecom as sc
from tf_scalecom import cluster, extended

START_SECONDS = 5
# More than TensorFlow's heartbeats and the watchdog's questions may go unanswered.
BUSY_SECONDS = 25


def die_after_meeting():
    """Has this worker die when it has met the others, and before TensorFlow starts."""
    meet = cluster.wait_for_peers

    def meet_and_die(place):
        meet(place)
        os.kill(os.getpid(), signal.SIGKILL)

    cluster.wait_for_peers = meet_and_die


class Report(keras.callbacks.Callback):
    """Says when training is under way, and then does what is to go wrong."""

    def __init__(self, reported, fault=None):
        super().__init__()
        self._reported = reported
        self._fault = fault

    def on_train_batch_end(self, batch, logs=None):
        if batch == 20:
            self._reported.touch()
            if self._fault is not None:
                self._fault()


def stop():
    """Stops the whole process, as Ctrl-Z does."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fail():
    """Fails after having kept the interpreter to itself for long."""
    ctypes.PyDLL(None).sleep(BUSY_SECONDS)
    print("busy no more", flush=True)
    raise RuntimeError("this callback fails on one worker")


def main():
    """Train until the end of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("optimizer", choices=["dense", "compressed"])
    parser.add_argument("--dies-at-start", type=int, metavar="RANK")
    parser.add_argument("--stops", type=int, metavar="RANK")
    parser.add_argument("--fails", type=int, metavar="RANK")
    args = parser.parse_args()
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    if args.dies_at_start is not None:
        extended._START_SECONDS = START_SECONDS
    if args.dies_at_start == rank:
        die_after_meeting()
    strategy = sc.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256)])
        optimizer = keras.optimizers.SGD(0.01)
        if args.optimizer == "compressed":
            optimizer = sc.ScaleComOptimizer(optimizer, compression_ratio=100)
        model.compile(optimizer, "mse")
    rows = tf.data.Dataset.from_tensors((tf.ones([6, 64]), tf.ones([6, 256]))).repeat()
    fault = {args.stops: stop, args.fails: fail}.get(rank)
    report = Report(args.folder / f"under-way-{rank}", fault)
    model.fit(rows, epochs=1, steps_per_epoch=10**9, verbose=0, callbacks=[report])


if __name__ == "__main__":
    main()
