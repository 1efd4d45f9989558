"""Workers that differ in what they must have in common fail at once, with the difference."""

import re
import textwrap
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from worker_cluster import start_scripts

import tf_scalecom as sc
from tf_scalecom.workers.agreement import VARIABLE, check_alike, compared, differences

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


def test_differences_name_the_variable_and_do_not_compare_its_path():
    def described(layer, units):
        return {"variables": [{VARIABLE: f"{layer}/kernel", "shape": [4, units]}]}

    same = [described("dense", 5), described("dense_1", 5)]
    assert differences(same, NAMES[:2]) == [] and compared(same[0]) == compared(same[1])
    units = [described("dense", 5), described("dense_1", 5), described("l" * 200, 6)]
    assert differences(units, NAMES) == [
        "variables.0.shape.1: 5 (dense/kernel on worker 0, worker 1), "
        f"6 (...{'l' * 93}/kernel on worker 2)"
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
        ([{}, {"warmup": "ramp"}], (0.0, 0.0), "warmup: 'dense' (worker 0), 'ramp' (worker 1)"),
        (
            [{}, {}],
            (0.9, 0.5),
            "inner_optimizer.config.momentum: 0.9 (worker 0), 0.5 (worker 1)",
        ),
        # Names are made unique by counting, in each process for itself.
        ([{"name": "a"}, {"name": "b"}], (0.0, 0.0), None),
    ],
)
@pytest.mark.quick
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
@pytest.mark.slow
def test_different_versions_and_devices_fail_on_all_workers(tmp_path):
    for log in logs_of_failure(DIFFERENT_INSTALLATION, tmp_path):
        assert f"tf_scalecom: '{sc.__version__}' (worker 0), '0.0.9' (worker 1)" in log
        assert "local devices: 1 (worker 0), 2 (worker 1)" in log


UNLIKE = {
    "class": ({"optimizer": "SGD"}, {"optimizer": "Lion"}),
    "momentum": ({"momentum": 0.9}, {"momentum": 0.5}),
    "clipping": ({"clipnorm": 1.0}, {}),
    "schedule": ({"decay": 0.9}, {"decay": 0.8}),
    "shape": ({"units": 32}, {"units": 33}),
    "late": ({"units": 32, "late": True}, {"units": 33, "late": True}),
    "dtype": ({"dtype": "float32"}, {"dtype": "float64"}),
    "policy": ({"dtype": "float32"}, {"dtype": "mixed_bfloat16"}),
    "trainable": ({"trainable": True}, {"trainable": False}),
    "name": ({"center": False}, {"center": True}),
    "nothing": ({"name": "a"}, {"name": "b", "layers_before": 2}),
}


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Without `get_config`."""

    def __call__(self, step):
        return 0.1


class InTwo(keras.Model):
    """Keras creates its variables only in `fit`."""

    def __init__(self, *two):
        super().__init__()
        self.two = two

    def call(self, inputs):
        return self.two[1](self.two[0](inputs))


def fit_with(strategy, arguments):
    """Builds and trains with a plain optimizer; returns the error."""

    def model_of(
        optimizer="SGD",
        decay=None,
        units=4,
        dtype="float32",
        trainable=True,
        center=False,
        layers_before=0,
        late=False,
        **hyper_parameters,
    ):
        for _ in range(layers_before):
            keras.layers.Dense(1)  # which has Keras count further for the next one's name
        dense = keras.layers.Dense(units, use_bias=False, dtype=dtype)
        norm = keras.layers.BatchNormalization(center=center, scale=not center)
        rate = OwnSchedule()
        if decay:
            rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, decay)
        dense.trainable = trainable
        model = InTwo(dense, norm) if late else keras.Sequential([keras.Input((20,)), dense, norm])
        model.compile(getattr(keras.optimizers, optimizer)(rate, **hyper_parameters), "mse")
        return model

    try:
        with strategy.scope():
            model = model_of(**arguments[strategy.extended._id_in_cluster])
        model.fit(np.ones((8, 20)), np.ones((8, 1)), verbose=0)
    except ValueError as error:
        return str(error)
    return None


def policy_elsewhere(strategy, where):
    """Has one worker alone compute in bfloat16, out of `fit`; returns the error."""
    policy = ["float32", "mixed_bfloat16"][strategy.extended._id_in_cluster]
    try:
        with strategy.scope():
            if where == "set for all layers":
                keras.config.set_dtype_policy(policy)
                policy = None
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype=policy)])
            model.compile(loss="mse")
        if where == "evaluate":
            model.evaluate(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
        else:
            model.predict(np.ones((8, 2)), verbose=0)
    except ValueError as error:
        return str(error)
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("where", ["set for all layers", "evaluate", "predict"])
def test_a_dtype_policy_of_one_worker_alone_is_noticed_out_of_fit_too(cluster, where):
    for said in cluster(2).run(policy_elsewhere, where):
        assert re.search(
            r"dtype polic.*'float32' .*worker 0\), 'mixed_bfloat16' .*worker 1\)", said
        )


@pytest.mark.parametrize(
    ("case", "difference"),
    [
        ("class", "class_name: 'SGD' (worker 0), 'Lion' (worker 1)"),
        ("momentum", "momentum: 0.9 (worker 0), 0.5 (worker 1)"),
        ("clipping", "clipnorm: 1.0 (worker 0), nothing (worker 1)"),
        ("schedule", "config.learning_rate.config.decay_rate: 0.9 (worker 0), 0.8 (worker 1)"),
        ("shape", "shape.1: 32 (sequential/dense/kernel on worker 0), 33 (sequential/dense/"),
        ("late", "shape.1: 32 (in_two/dense/kernel on worker 0), 33 (in_two/dense/kernel on w"),
        ("dtype", "dtype: 'float32' (sequential/dense/kernel on worker 0), 'float64' (sequential"),
        ("policy", "dtype policies.2: 'float32' (worker 0), 'mixed_bfloat16' (worker 1)"),
        ("trainable", "variables.0.trainable: True (sequential/dense/kernel on worker 0), False ("),
        ("name", "variables.1.name: 'gamma' (sequential/batch_normalization/gamma on worker 0), "),
        ("nothing", None),
    ],
)
def test_different_models_and_plain_optimizers_fail_at_once(cluster, case, difference):
    for message in cluster(2).run(fit_with, UNLIKE[case], timeout=25):
        if difference is None:
            assert message is None
        else:
            assert "expected no difference" in message and difference in message


def build_compressed(strategy, betas):
    beta = betas[strategy.extended._id_in_cluster]
    with strategy.scope():
        variable = keras.Variable(np.zeros((50, 40), np.float32))
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(OwnSchedule()), beta=beta)
        try:
            optimizer.build([variable])
        except ValueError as error:
            return str(error)
    return None


def test_a_schedule_that_keras_cannot_save_is_no_hindrance(cluster):
    assert cluster(2).run(build_compressed, (0.5, 0.5)) == [None, None]
    for message in cluster(2).run(build_compressed, (0.5, 0.25)):
        assert "beta: 0.5 (worker 0), 0.25 (worker 1)" in message


DIFFERENT_CALLS = """
    import json, os
    import keras, numpy as np
    import tensorflow as tf
    import tf_scalecom

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=8)
    strategy = tf_scalecom.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
        if strategy.extended._id_in_cluster == 1:
            keras.Variable(np.zeros(3))
    model.fit(np.ones((8, 20)), np.ones((8, 3)))
"""


@pytest.mark.multi_worker
@pytest.mark.slow
def test_workers_in_different_calls_fail_and_say_in_which(tmp_path):
    for log in logs_of_failure(DIFFERENT_CALLS, tmp_path):
        assert re.search(r"/task:0 is in gather of int32 \[1, 64\], numbers of batches", log), log
        assert re.search(r"/task:1 is in reduce of int64 \[2\], comparison of each new", log), log
        assert "Some have made a call before that others have not. Look for a branch" in log


# --- Gradients, and optimizers that have made other numbers of steps ---------------------------

ABSENT, DENSE = None, np.ones((40, 30), np.float32)
# What each worker but the last has for `a` and `b`, and what the last has.
GRADIENTS = {
    "others": ([DENSE, ABSENT], [ABSENT, DENSE]),
    "one less": ([DENSE, DENSE], [DENSE, ABSENT]),
    "none": ([DENSE, DENSE], [ABSENT, ABSENT]),
    "all": ([DENSE, DENSE], [DENSE, DENSE]),
}


def apply_unlike(strategy, wrapped, in_graph):
    """Applies each case with an optimizer of its own; returns the errors."""
    is_last = strategy.extended._id_in_cluster == strategy.num_replicas_in_sync - 1
    with strategy.scope():
        a, b = (keras.Variable(np.ones_like(DENSE), name=name) for name in "ab")

    def optimizer_of():
        with strategy.scope():
            optimizer = keras.optimizers.SGD(0.1)
            optimizer = sc.ScaleComOptimizer(optimizer) if wrapped else optimizer
            optimizer.build([a, b])
        return optimizer

    def error_of(optimizer, grads, variables=(a, b)):
        def step():
            strategy.run(
                lambda: optimizer.apply(
                    [tf.convert_to_tensor(g) if isinstance(g, np.ndarray) else g for g in grads],
                    list(variables),
                )
            )

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist")
            try:
                (tf.function(step, autograph=False) if in_graph else step)()
            except ValueError as error:
                return str(error)
        return None

    errors = {case: error_of(optimizer_of(), sets[is_last]) for case, sets in GRADIENTS.items()}
    errors["order"] = error_of(optimizer_of(), [DENSE, DENSE], (b, a) if is_last else (a, b))
    slices = tf.IndexedSlices(tf.ones([2, 30]), tf.constant([0, 1]), tf.constant([40, 30]))
    errors["slices"] = error_of(optimizer_of(), [DENSE, slices if is_last else DENSE])
    optimizer = optimizer_of()
    if is_last:
        optimizer.iterations.assign(7)
    errors["iterations"] = error_of(optimizer, [DENSE, DENSE])
    optimizer = optimizer_of()
    errors["several"] = [
        error_of(optimizer, grads) for grads in ([DENSE, ABSENT], [ABSENT, DENSE]) * 2
    ]
    return errors, [v.numpy() for v in (a, b)]


@pytest.mark.parametrize(
    ("num_workers", "wrapped", "in_graph"),
    [(2, True, True), (2, False, True), (2, False, False), (3, True, False), (3, False, True)],
)
def test_gradients_of_different_variables_are_refused(cluster, num_workers, wrapped, in_graph):
    results = cluster(num_workers).run(apply_unlike, wrapped, in_graph, timeout=120)
    last = f"worker {num_workers - 1}"
    first = ", ".join(f"worker {i}" for i in range(num_workers - 1))
    for errors, values in results:
        assert errors.pop("all") is None and errors.pop("several") == [None] * 4
        assert f"0.gradient: 'dense' (a on {first}), 'none' (a on {last})" in errors["others"]
        assert f"1.gradient: 'none' (b on {first}), 'dense' (b on {last})" in errors["others"]
        assert f"1.gradient: 'dense' (b on {first}), 'none' (b on {last})" in errors["one less"]
        assert f"0.gradient: 'dense' (a on {first}), 'none' (a on {last})" in errors["none"]
        assert re.search(r"0\.variable: \d+ \(a on .*\), \d+ \(b on worker", errors["order"])
        # Compressed, they become dense before they travel.
        if wrapped:
            assert errors["slices"] is None
        else:
            assert "1.gradient: 'dense'" in errors["slices"]
        assert f"iterations.0: 0 ({first}), 7 ({last})" in errors["iterations"]
        for mine, of_first in zip(values, results[0][1], strict=True):
            np.testing.assert_array_equal(mine, of_first)


class WithSecondOptimizer(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.others = {"second": keras.optimizers.SGD(0.1)}

    def call(self, inputs):
        return self.dense(inputs)


def fit_after_restore_on_one(strategy, which):
    with strategy.scope():
        model = WithSecondOptimizer()
        model.compile("sgd", "mse")

    class Restores(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            if strategy.extended._id_in_cluster == 1:
                restored = model.optimizer if which == "first" else model.others["second"]
                restored.iterations.assign(5)

    try:
        model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0, callbacks=[Restores()])
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("which", ["first", "second"])
def test_fit_refuses_an_optimizer_restored_on_one_worker(cluster, which):
    for error in cluster(2).run(fit_after_restore_on_one, which):
        assert re.search(r"iterations\.[01]: 0 \(worker 0\), 5 \(worker 1\)", error), error


DIFFERENT_LEADERS = """
    import keras, numpy as np
    import tensorflow as tf
    import tf_scalecom

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=20)
    strategy = tf_scalecom.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        variable = keras.Variable(np.ones(2000, np.float32), name="weights")
        optimizer = tf_scalecom.ScaleComOptimizer(keras.optimizers.SGD(0.1))

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply([tf.ones(2000)], [variable]))

    step()
    if strategy.extended._id_in_cluster == 1:
        optimizer.iterations.assign(2)
    step()
"""


@pytest.mark.multi_worker
@pytest.mark.slow
def test_workers_with_different_leaders_fail_and_say_so(tmp_path):
    said = "".join(logs_of_failure(DIFFERENT_LEADERS, tmp_path))
    assert re.search(r"has waited [\d.]+ s, as all workers have, but not for the same", said), said
    for rank in (0, 1):
        call = rf"/task:{rank} is in broadcast of int32 \[\d+\], gradients \w+, "
        sender = rf"from replica {1 - rank}, call \d+ \(gradients: all of 1\)"
        assert re.search(call + sender, said), said
    assert "the `iterations` of their optimizers differ" in said


LATER = """
    import keras, numpy as np
    import tensorflow as tf
    import tf_scalecom

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=20)
    strategy = tf_scalecom.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        a, b = (keras.Variable(np.ones(9, np.float32), name=name) for name in "ab")
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([a, b])

    @tf.function
    def step(first):
        def apply():
            optimizer.apply([tf.ones(9), None] if first else [None, tf.ones(9)], [a, b])

        strategy.run(apply)

    step(True)
    step(False)
    step(strategy.extended._id_in_cluster == 1)
"""


@pytest.mark.multi_worker
@pytest.mark.slow
def test_known_sets_of_gradients_do_not_meet_in_one_step(tmp_path):
    said = "".join(logs_of_failure(LATER, tmp_path))
    for rank, absent in enumerate("ab"):
        call = rf"/task:{rank} is in reduce of float32 \[9\], gradients \w+, call \d+ "
        assert re.search(call + rf"\(gradients: 1 of 2, none of {absent}\)", said), said
    assert "Their steps have gradients for other variables" in said
