"""One worker of a training run that does not end by itself: `faulty_worker.py FOLDER OPTIMIZER`.

It reports in FOLDER once training is under way. What goes wrong with it then is done to it from
outside, or asked for by an option that says which worker it is about.
"""

import argparse
import ctypes
import json
import os
import signal
import threading
import time
from pathlib import Path

import keras
import tensorflow as tf
from tensorflow.python.eager import context

import tf_scalecom as sc
from tf_scalecom import extended
from tf_scalecom.workers import cluster

START_SECONDS = 5
# More than TensorFlow's heartbeats and the watchdog's questions (11 s) may go unanswered.
HEARTBEAT_SECONDS = 10
BUSY_SECONDS = 14


def get_signal_at_start(signum, is_own):
    """Has a worker get a signal when it has met the others, before TensorFlow starts on all.

    One that a program can handle comes when TensorFlow waits for the others.
    """
    meet = cluster.wait_for_peers

    def meet_and_get(place):
        watch = meet(place)
        handled = signum in (signal.SIGINT, signal.SIGTERM)
        if is_own and handled:
            threading.Timer(1.0, os.kill, (os.getpid(), signum)).start()
        elif is_own:
            os.kill(os.getpid(), signum)
        elif handled:
            time.sleep(3.0)
        return watch

    cluster.wait_for_peers = meet_and_get


class Report(keras.callbacks.Callback):
    """Says when training is under way, and then does what is to go wrong."""

    def __init__(self, reported, fault=None):
        super().__init__()
        self._reported = reported
        self._fault = fault

    def on_train_batch_end(self, batch, logs=None):
        if batch == 20:
            self._reported.write_text(str(os.getpid()))
            if self._fault is not None:
                self._fault()


def stop_when_others_notice(rank, reported, own_rank):
    """Has a worker stopped, as by Ctrl-Z, when another has seen it alive and makes its next call.

    That call, which leaves a note with the first worker, is not answered.
    """
    if own_rank == rank:
        return lambda: time.sleep(1000)
    write = context.Context.set_config_key_value

    def stop_and_write(self, key, value):
        if "waits" in key:
            os.kill(int(reported.read_text()), signal.SIGSTOP)
        write(self, key, value)

    context.Context.set_config_key_value = stop_and_write
    return None


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
    parser.add_argument("--at-start", type=int, nargs=2, metavar=("SIGNAL", "RANK"))
    parser.add_argument("--stops", type=int, metavar="RANK")
    parser.add_argument("--fails", type=int, metavar="RANK")
    args = parser.parse_args()
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    if args.at_start is not None:
        signum, signalled = args.at_start
        get_signal_at_start(signum, signalled == rank)
        if signum == signal.SIGSTOP:
            extended._START_SECONDS = START_SECONDS
    if args.fails is not None:
        extended._HEARTBEAT_SECONDS = HEARTBEAT_SECONDS
    strategy = sc.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256)])
        optimizer = keras.optimizers.SGD(0.01)
        if args.optimizer == "compressed":
            optimizer = sc.ScaleComOptimizer(optimizer, compression_ratio=100)
        model.compile(optimizer, "mse")
    rows = tf.data.Dataset.from_tensors((tf.ones([6, 64]), tf.ones([6, 256]))).repeat()
    fault = fail if args.fails == rank else None
    if args.stops is not None:
        reported = args.folder / f"under-way-{args.stops}"
        fault = stop_when_others_notice(args.stops, reported, rank)
    report = Report(args.folder / f"under-way-{rank}", fault)
    model.fit(rows, epochs=1, steps_per_epoch=10**9, verbose=0, callbacks=[report])


if __name__ == "__main__":
    main()
