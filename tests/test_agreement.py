"""Workers that differ in what they must have in common fail at once, with the difference."""

import textwrap
import time

import keras
import numpy as np
import pytest
from worker_cluster import start_scripts

import tf_scalecom as sc
from tf_scalecom.agreement import check_alike, differences

NAMES = ["worker 0", "worker 1", "worker 2"]


def test_differences_name_place_values_and_workers():
    common = {"beta": 0.3, "variables": [[[4, 5], "float32"]]}
    assert differences([common] * 3, NAMES) == []
    wider = {"beta": 0.3, "variables": [[[4, 6], "float32"]]}
    assert differences([common, common, wider], NAMES) == [
        "variables.0.0.1: 5 (worker 0, worker 1), 6 (worker 2)"
    ]
    longer = {"beta": 0.3, "variables": [[[4, 5], "float32"], [[], "float32"]]}
    assert differences([common, longer], NAMES[:2]) == [
        "variables.length: 1 (worker 0), 2 (worker 1)",
        "variables.1.length: nothing (worker 0), 2 (worker 1)",
        "variables.1.0.length: nothing (worker 0), 0 (worker 1)",
        "variables.1.1: nothing (worker 0), 'float32' (worker 1)",
    ]


def test_a_long_list_of_differences_is_cut_and_counted():
    with pytest.raises(ValueError, match=r"(?s)0: 0 \(worker 0\).*and 5 more diff.*Do"):
        check_alike("numbers", [list(range(10)), list(range(1, 11))], NAMES[:2], "Do it.")


def build_differently(strategy, arguments, momentum):
    rank = strategy.cluster_resolver.task_id
    with strategy.scope():
        variable = keras.Variable(np.zeros((50, 40), np.float32))
        inner = keras.optimizers.SGD(0.1, momentum[rank])
        optimizer = sc.ScaleComOptimizer(inner, **arguments[rank])
        try:
            optimizer.build([variable])
        except ValueError as error:
            return str(error)
    return None


@pytest.mark.parametrize(
    ("arguments", "momentum", "difference"),
    [
        ([{"beta": 0.5}, {}], (0.0, 0.0), "beta: 0.5 (worker 0), 1.0 (worker 1)"),
        ([{}, {"warmup_steps": 3}], (0.0, 0.0), "warmup_steps: 0 (worker 0), 3 (worker 1)"),
        (
            [{}, {}],
            (0.9, 0.5),
            "inner_optimizer.config.momentum: 0.9 (worker 0), 0.5 (worker 1)",
        ),
        # Names are made unique by counting, in each process for itself.
        ([{"name": "a"}, {"name": "b"}], (0.0, 0.0), None),
    ],
)
def test_different_hyper_parameters_fail_on_all_workers(cluster, arguments, momentum, difference):
    for message in cluster(2).run(build_differently, arguments, momentum):
        if difference is None:
            assert message is None
        else:
            assert difference in message


def logs_of_failure(program, tmp_path):
    """Runs a program on two workers, which both must fail in time."""
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(program))
    with start_scripts(script, 2, log_dir=tmp_path / "logs") as workers:
        deadline = time.monotonic() + 90
        while None in workers.poll() and time.monotonic() < deadline:
            time.sleep(0.2)
        logs = [worker.log_path.read_text() for worker in workers.workers]
        assert all(code not in (None, 0) for code in workers.poll()), "\n".join(logs)
    return logs


DIFFERENT_INSTALLATION = """
    import json, os
    import tensorflow as tf
    import tf_scalecom
    from tf_scalecom import extended

    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
        extended.__version__ = "0.0.9"
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )
    tf_scalecom.MultiWorkerMirroredStrategy()
"""


@pytest.mark.multi_worker
def test_different_versions_and_devices_fail_on_all_workers(tmp_path):
    for log in logs_of_failure(DIFFERENT_INSTALLATION, tmp_path):
        assert f"tf_scalecom: '{sc.__version__}' (worker 0), '0.0.9' (worker 1)" in log
        assert "local devices: 1 (worker 0), 2 (worker 1)" in log


DIFFERENT_MODEL = """
    import json, os
    import keras
    import tensorflow as tf
    import tf_scalecom

    units = 32 + json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=8)
    strategy = tf_scalecom.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        keras.Sequential([keras.Input((20,)), keras.layers.Dense(units)])
"""


@pytest.mark.multi_worker
def test_different_models_fail_on_all_workers(tmp_path):
    for log in logs_of_failure(DIFFERENT_MODEL, tmp_path):
        for worker, units in enumerate((32, 33)):
            wanted = f"/task:{worker} is in broadcast of float32 [20, {units}], initial_value"
            assert wanted in log
