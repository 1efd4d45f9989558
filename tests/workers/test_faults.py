"""Workers that die, stop, fail or never come: the others end in finite time and name them."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from faulty_worker import BUSY_SECONDS
from restarted_worker import DIES_IN_EPOCH, EPOCHS, STEPS
from worker_cluster import WORKER_ENV, start_scripts

from tf_scalecom import extended

pytestmark = [pytest.mark.multi_worker, pytest.mark.slow]

FAULTY_WORKER = Path(__file__).parents[1] / "faulty_worker.py"
RESTARTED_WORKER = Path(__file__).parents[1] / "restarted_worker.py"
START_SECONDS = 180
NOTICE_SECONDS = 20
RUN_SECONDS = 240
# They wait more than they compute.
SCENARIOS_AT_ONCE = 3


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """Runs the selected scenarios, each in a folder of its own; by scenario, what came of it."""
    scenarios = [
        item.callspec.params["scenario"]
        for item in request.session.items
        if item.module is request.module and "outcomes" in item.fixturenames
    ]
    with ThreadPoolExecutor(SCENARIOS_AT_ONCE) as pool:
        yield {
            scenario: pool.submit(scenario, tmp_path_factory.mktemp("scenario"))
            for scenario in scenarios
        }
        pool.shutdown(cancel_futures=True)


def scenario(*cases):
    """Makes a test of `check(*case, folder)`, for each case or once."""

    def make_test(check):
        @pytest.mark.parametrize(
            "scenario",
            [partial(check, *case) for case in cases or [()]],
            ids=["-".join(map(str, case)) for case in cases] or ["once"],
        )
        def test(outcomes, scenario):
            outcomes[scenario].result()

        return test

    return make_test


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not (done := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return done


def under_way(folder):
    return all((folder / f"under-way-{rank}").exists() for rank in range(3))


def all_output(workers):
    return "\n".join(w.output().decode(errors="replace")[-3000:] for w in workers.workers)


def check_others_name(workers, rank, seconds):
    """All workers but one end in time, with an error that names that one."""
    others = [worker for worker in workers.workers if worker.index != rank]
    deadline = time.monotonic() + seconds
    codes = [worker.wait(deadline - time.monotonic()) for worker in others]
    assert all(code not in (None, 0) for code in codes), (codes, all_output(workers))
    for worker in others:
        said = worker.output().decode(errors="replace")
        named = rf"/job:worker(/replica:0)?/task:{rank}\b|has waited \d+ s for worker {rank} "
        assert re.search(named, said), said[-3000:]


def blamed(worker):
    """The tasks that this package's last words on a worker blame."""
    said = worker.output().decode(errors="replace")
    because = r"has failed because of|has waited \d+ s in a collective for"
    *_, words = re.findall(rf"tf_scalecom: worker \d (?:{because}) (.*)\. Look for", said)
    return re.findall(r"/job:worker/task:(\d) \(\S+\), which has ended", words)


def run(num_workers, folder, *arguments):
    """Runs the launcher; returns its exit code and what it wrote."""
    command = [sys.executable, "-m", "tf_scalecom", "run", "-n", str(num_workers)]
    # Killed at the limit, it takes the workers along.
    ended = subprocess.run(
        [*command, "--log-dir", str(folder / "logs"), *arguments],
        env={**os.environ, **WORKER_ENV},
        stdout=subprocess.PIPE,
        text=True,
        timeout=RUN_SECONDS,
    )
    return ended.returncode, ended.stdout


@scenario()
def test_a_busy_worker_is_waited_for_and_a_failing_one_is_named(folder):
    args = [str(folder), "compressed", "--fails", "1"]
    with start_scripts(FAULTY_WORKER, 3, *args, log_dir=folder / "logs") as workers:
        failing = workers.workers[1]
        assert failing.wait(START_SECONDS + BUSY_SECONDS) == 1, all_output(workers)
        said = failing.output().decode()
        assert "busy no more" in said and "this callback fails on one worker" in said, said
        check_others_name(workers, 1, NOTICE_SECONDS)


@scenario()
def test_a_stopped_worker_is_named_and_ended(folder):
    options = ["--grace-seconds", "2"]
    faulty = [str(FAULTY_WORKER), str(folder), "dense", "--stops", "0"]
    code, said = run(2, folder, *options, *faulty)
    assert code == 1, said
    silent = r"worker 1 has waited (\d+) s .* /job:worker/task:0 .* does not answer: it is stopped"
    (waited,) = set(re.findall(silent, said))
    # Not held up by the call, which returns when TensorFlow misses the heartbeats.
    assert int(waited) < extended._HEARTBEAT_SECONDS, said
    assert "worker 0 afterwards: ended by signal 9 (SIGKILL)" in said, said


# With three workers in a ring, one of the others receives from the dead one and one sends to it.
# Worker 0 is the one at which TensorFlow watches the rest.
@scenario(("dense", 0), ("compressed", 1), ("compressed", 2))
def test_a_killed_worker_is_named_by_the_others(optimizer, rank, folder):
    args = [str(folder), optimizer]
    with start_scripts(FAULTY_WORKER, 3, *args, log_dir=folder / "logs") as workers:
        assert wait_until(lambda: under_way(folder), START_SECONDS), all_output(workers)
        os.kill(workers.workers[rank].pid, signal.SIGKILL)
        check_others_name(workers, rank, NOTICE_SECONDS)
        for worker in workers.workers:
            assert worker.index == rank or blamed(worker) == [str(rank)]


# The first worker is TensorFlow's coordinator.
@scenario(
    (signal.SIGKILL, 0, "ended"),
    (signal.SIGKILL, 1, "ended"),
    (signal.SIGTERM, 1, "ended"),
    (signal.SIGINT, 0, "ended"),
    (signal.SIGSTOP, 1, "silent"),
)
def test_a_worker_that_is_lost_while_tensorflow_starts_is_named(signum, rank, how, folder):
    args = [str(folder), "dense", "--at-start", str(int(signum)), str(rank)]
    with start_scripts(FAULTY_WORKER, 3, *args, log_dir=folder / "logs") as workers:
        lost = workers.workers[rank]
        if how == "ended":
            assert lost.wait(START_SECONDS) == -signum, all_output(workers)
        check_others_name(workers, rank, NOTICE_SECONDS if how == "ended" else START_SECONDS)
        named = rf"/job:worker/task:{rank} \({workers.addresses[rank]}\)"
        words = {
            "ended": f"{named}, which has ended while TensorFlow started",
            "silent": f"received no answer from {named}",
        }
        for worker in workers.workers:
            said = worker.output().decode()
            assert worker is lost or re.search(words[how], said), said


@scenario()
def test_who_is_asked_to_end_after_a_kill_does_not_wait_for_the_killed_one(folder):
    """As the launcher asks the others, before it starts all again."""
    args = [str(folder), "dense"]
    with start_scripts(FAULTY_WORKER, 3, *args, log_dir=folder / "logs") as workers:
        assert wait_until(lambda: under_way(folder), START_SECONDS), all_output(workers)
        os.kill(workers.workers[1].pid, signal.SIGKILL)
        workers.send_signal(signal.SIGTERM)
        codes = workers.wait(extended._SHUTDOWN_SECONDS)
        assert codes[1] == -signal.SIGKILL and {codes[0], codes[2]} <= {1, 143}, (
            codes, all_output(workers),
        )  # fmt: skip


@scenario()
def test_a_worker_that_is_asked_to_end_ends_training_on_all(folder):
    args = [str(folder), "compressed"]
    with start_scripts(FAULTY_WORKER, 3, *args, log_dir=folder / "logs") as workers:
        assert wait_until(lambda: under_way(folder), START_SECONDS), all_output(workers)
        os.kill(workers.workers[1].pid, signal.SIGTERM)
        assert workers.wait(NOTICE_SECONDS) == [128 + signal.SIGTERM] * 3, all_output(workers)
        asked = "asked to end (SIGTERM); all workers end after this step"
        for worker in workers.workers:
            said = worker.output().decode()
            assert (asked in said) == (worker.index == 1), said
            assert "training ends, as worker 1 was asked to (SIGTERM); exit code 143" in said, said
            assert "Traceback" not in said and "CollectiveReduce" not in said, said


ASKED_AT = """
import json, os, signal, sys
import keras, numpy as np
import tf_scalecom as sc

strategy = sc.MultiWorkerMirroredStrategy()
is_asked = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

class Asks(keras.callbacks.Callback):
    pass

def ask(self, *_, **__):
    if is_asked:
        os.kill(os.getpid(), signal.SIGTERM)

setattr(Asks, sys.argv[1], ask)
x, y = np.ones((64, 4)), np.ones((64, 1))
if "test" in sys.argv[1]:
    model.evaluate(x, y, batch_size=8, callbacks=[Asks()], verbose=0)
else:
    model.fit(x, y, batch_size=8, callbacks=[Asks()], verbose=0)
print("went on")
"""


@scenario(("on_epoch_end", [143, 143]), ("on_test_batch_end", [1, 143]))
def test_whenever_a_worker_is_asked_to_end_none_goes_on(when, codes, folder):
    """After the last step on all; out of training alone, which the other notices."""
    script = folder / "script.py"
    script.write_text(ASKED_AT)
    with start_scripts(script, 2, when, log_dir=folder / "logs") as workers:
        assert workers.wait(START_SECONDS) == codes, all_output(workers)
        assert "went on" not in all_output(workers)


ASKED_IN_A_THREAD = """
import json, os, signal, sys, threading, time
import tf_scalecom as sc

def train():
    sc.MultiWorkerMirroredStrategy()
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

if sys.argv[1] == "handled":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


@scenario(("unhandled", -signal.SIGTERM), ("handled", 7))
def test_what_tensorflow_would_catch_in_a_thread_ends_the_worker(handler, code, folder):
    """As under Ray, which has a handler of its own."""
    script = folder / "script.py"
    script.write_text(ASKED_IN_A_THREAD)
    with start_scripts(script, 2, handler, log_dir=folder / "logs") as workers:
        assert workers.workers[1].wait(START_SECONDS) == code, all_output(workers)


@scenario()
def test_a_launcher_that_is_asked_to_end_needs_no_kill(folder):
    command = [sys.executable, "-m", "tf_scalecom", "run", "-n", "3", "--log-dir"]
    with open(folder / "said", "w") as said:
        launcher = subprocess.Popen(
            [*command, str(folder / "logs"), str(FAULTY_WORKER), str(folder), "dense"],
            env={**os.environ, **WORKER_ENV},
            stdout=said,
        )
    try:
        assert wait_until(lambda: under_way(folder), START_SECONDS)
        launcher.terminate()
        code = launcher.wait(NOTICE_SECONDS - 5)
    finally:
        launcher.kill()  # takes the workers along
    words = (folder / "said").read_text()
    assert code == 128 + signal.SIGTERM, words
    assert "passed SIGTERM on to the workers" in words, words
    assert words.count("exit code 143") == 3 and "Traceback" not in words, words


NEVER_COMES = """
import json, os, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 2:
    time.sleep(1000)
import tf_scalecom
tf_scalecom.MultiWorkerMirroredStrategy()
"""


@scenario()
def test_a_worker_that_never_comes_is_named_then_given_up(folder):
    script = folder / "script.py"
    script.write_text(NEVER_COMES)
    limits = {
        "TF_SCALECOM_REPORT_MISSING_SECONDS": "1",
        "TF_SCALECOM_WAIT_FOR_WORKERS_SECONDS": "5",
    }
    with start_scripts(script, 3, log_dir=folder / "logs", env=limits) as workers:
        for worker in workers.workers[:2]:
            assert worker.wait(START_SECONDS) == 1, all_output(workers)
            said = worker.output().decode()
            address = re.escape(workers.addresses[2])
            missing = rf"worker 2 \({address}, connection refused"
            assert re.search(rf"worker {worker.index} has waited \d+ s for .*{missing}", said), said
            assert re.search(rf"TimeoutError: .* in vain for .*{missing}", said), said
        assert workers.poll()[2] is None


@scenario((2, 2), (3, 2))
def test_training_carries_on_from_the_backup_after_a_restart(workers, least, folder):
    restarts = ["--max-restarts", "1", "--min-workers", str(least)]
    code, said = run(workers, folder, *restarts, str(RESTARTED_WORKER), str(folder))
    assert code == 0, said
    assert "worker 1 failed: ended by signal 9 (SIGKILL)" in said
    assert "every worker finished after restart 1 of 1" in said
    epochs = re.findall(r"^\[worker 1\] epoch (\d)$", said, re.MULTILINE)
    assert [int(epoch) for epoch in epochs] == [0, 1, 2, *range(DIES_IN_EPOCH, EPOCHS)]
    first, second = (np.load(folder / f"end-{rank}.npz") for rank in (0, 1))
    assert first["iterations"] == second["iterations"] == EPOCHS * STEPS
    np.testing.assert_array_equal(first["kernel"], second["kernel"])
    # What was sent, and what is still to be sent, is every gradient once: the backup lost none.
    done = -first["kernel"] + first["residual"] + second["residual"]
    np.testing.assert_array_equal(done, np.full(2000, 2.0 * EPOCHS * STEPS))
