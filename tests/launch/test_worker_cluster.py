"""The workers' test harness: values, errors, deaths and time-outs, and what comes after them."""

import os
import signal
import socket
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from worker_cluster import WorkerCluster, WorkerFailure, start_scripts


def describe(strategy, greeting, punctuation="."):
    return f"{greeting} {strategy.cluster_resolver.task_id}{punctuation}"


def sum_of_ranks(strategy):
    def replica():
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.distribute.get_replica_context().all_reduce("sum", rank + 1)

    return strategy.run(tf.function(replica)).numpy()


def fail_on(strategy, rank):
    if strategy.cluster_resolver.task_id == rank:
        assert rank + 100 == 0, "as asked"
    sum_of_ranks(strategy)


def kill_on(strategy, rank):
    if strategy.cluster_resolver.task_id == rank:
        os.kill(os.getpid(), signal.SIGKILL)


def hang_on(strategy, rank):
    while strategy.cluster_resolver.task_id == rank:
        time.sleep(0.01)


def warn(strategy):
    warnings.warn("careful", stacklevel=1)


def unpicklable(strategy):
    return lambda: None


def process_id(strategy):
    return os.getpid()


def random_draws(strategy):
    return np.random.uniform(size=3), tf.random.uniform([3]).numpy()


def cpu_count(strategy):
    return len(tf.config.list_logical_devices("CPU"))


def no_strategy():
    return None


def cpu_count_alone(nothing):
    return len(tf.config.list_logical_devices("CPU"))


@pytest.mark.quick
def test_every_worker_answers_in_order(cluster):
    assert cluster(2).run(describe, "I am", punctuation="!") == ["I am 0!", "I am 1!"]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_workers_exchange(cluster, num_workers):
    expected = num_workers * (num_workers + 1) // 2
    assert cluster(num_workers).run(sum_of_ranks) == [expected] * num_workers


@pytest.mark.quick
def test_one_cluster_serves_many_calls(cluster):
    pids = cluster(2).run(process_id)
    assert pids == cluster(2).run(process_id) == cluster(2).pids
    assert len({*pids, os.getpid()}) == 3


def test_calls_start_from_the_same_seed(cluster):
    first, second = (cluster(2).run(random_draws)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_an_error_has_the_traceback_of_its_worker(cluster):
    rank = 1
    with pytest.raises(
        WorkerFailure, match=rf"failed on worker {rank} of 2:(?s:.*)as asked"
    ) as info:
        cluster(2).run(fail_on, rank, timeout=30)
    assert f"assert ({rank} + 100) == 0" in str(info.value)  # the operands, as pytest shows them
    assert f"--- worker {1 - rank}: did not answer" in str(info.value)
    assert cluster(2).run(sum_of_ranks) == [3, 3]


def test_a_killed_worker_is_named_and_replaced(cluster):
    before = cluster(2).run(process_id)
    with pytest.raises(WorkerFailure, match=r"(?s)on worker 1 of 2:\nended by signal 9"):
        cluster(2).run(kill_on, 1)
    after = cluster(2).run(process_id)
    assert not {*before} & {*after}


def test_a_worker_that_died_between_calls_is_replaced(cluster):
    before = cluster(1).run(process_id)
    os.kill(before[0], signal.SIGKILL)
    time.sleep(0.2)
    assert cluster(1).run(process_id) != before


def test_a_time_out_shows_where_the_worker_is(cluster):
    started = time.monotonic()
    with pytest.raises(WorkerFailure, match=r"within 1 s; no answer from worker 1\.") as info:
        cluster(2).run(hang_on, 1, timeout=1)
    assert time.monotonic() - started < 10
    assert "in hang_on" in str(info.value)  # from the stacks
    assert cluster(2).pids == []


def test_warnings_on_workers_are_errors(cluster):
    with pytest.raises(WorkerFailure, match="UserWarning: careful"):
        cluster(1).run(warn)


def test_a_value_that_cannot_be_sent_is_an_error(cluster):
    with pytest.raises(WorkerFailure, match=r"(?i)can't (pickle|get local)"):
        cluster(1).run(unpicklable)


def test_logical_cpus(cluster):
    lone = cluster(1, logical_cpus=2, build_strategy=no_strategy)
    assert lone.run(cpu_count_alone) == [2]


def test_scripts_may_die(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time; print(os.environ['COLOUR'], *sys.argv[1:])\ntime.sleep(60)"
    )
    with start_scripts(script, 3, "--x", log_dir=tmp_path, env={"COLOUR": "red"}) as scripts:
        scripts.workers[1].send_signal(signal.SIGKILL)
        assert scripts.workers[1].wait(timeout=10) == -signal.SIGKILL
        assert scripts.wait(timeout=0.5) == [None, -signal.SIGKILL, None]
        assert scripts.workers[0].output() == b"red --x\n"
    assert scripts.poll() == [-signal.SIGKILL] * 3


@pytest.mark.slow
def test_threads_start_workers_at_once(tmp_path):
    """Each thread gets the workers that it asked for."""
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.getpid())")

    def started_and_said(number):
        with start_scripts(script, 2, log_dir=tmp_path / str(number)) as scripts:
            assert scripts.wait(timeout=60) == [0, 0]
            return [(worker.pid, int(worker.output())) for worker in scripts.workers]

    with ThreadPoolExecutor(4) as pool:
        for workers in pool.map(started_and_said, range(8)):
            assert all(started == said for started, said in workers)


@pytest.mark.multi_worker
def test_a_port_taken_at_the_last_moment_is_replaced(tmp_path, monkeypatch):
    from tf_scalecom.launch import local_cluster

    with socket.socket() as occupant:
        occupant.bind(("", 0))
        occupant.listen()
        reserve, asked = local_cluster.reserve_ports, []

        def first_taken(count):
            asked.append(count)
            return [occupant.dup(), *reserve(count - 1)] if len(asked) == 1 else reserve(count)

        monkeypatch.setattr(local_cluster, "reserve_ports", first_taken)
        workers = WorkerCluster(2, log_dir=tmp_path)
        try:
            assert workers.run(sum_of_ranks) == [3, 3]
        finally:
            workers.close()
    assert asked == [2, 2]
