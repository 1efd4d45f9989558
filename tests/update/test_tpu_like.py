"""What a TPU would do with a step, as far as can be seen without one.

TensorFlow's own TPUStrategy traces the step for two cores that are names only; the graph is looked
at, not run. Training itself runs on logical CPUs, with the same kernels, under a strategy that like
a TPU's has its own all-reduce and no cross-device operations of this package.
"""

import collections
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case

import tf_scalecom as sc
from tf_scalecom import ops

CASES = (
    Case("top1", compression_ratio=10),
    Case("top10_filtered", compression_ratio=10, chunk_keep=10, beta=0.3, value_dtype="bfloat16"),
    Case("exact", compression_ratio=10, selection="exact"),
    Case("float16_wire", compression_ratio=10, value_dtype="float16"),
)
# The frame that TensorFlow puts around a computation of several cores.
TPU_FRAME = {"TPUReplicateMetadata", "TPUReplicatedInput", "TPUCompilationResult"}

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch):
    """The kernels that a TPU gets."""
    monkeypatch.setenv(ops.BACKEND_VARIABLE, "xla")
    ops.backend.cache_clear()
    yield
    ops.backend.cache_clear()


def tpu_strategy(cores=2):
    """A TPUStrategy over cores that nobody has; needs a graph, as nothing can be placed there."""
    host = "/job:localhost/replica:0/task:0/device:"
    names = [f"{host}TPU:{core}" for core in range(cores)] + [f"{host}CPU:0"]
    system = tf.tpu.experimental.TPUSystemMetadata(
        num_cores=cores,
        num_hosts=1,
        num_of_cores_per_host=cores,
        topology=None,
        devices=[types.SimpleNamespace(name=name) for name in names],
    )
    return tf.distribute.TPUStrategy(types.SimpleNamespace(get_tpu_system_metadata=lambda: system))


def trace_on_tpu(case, **arguments):
    """The graph of one core's step: two variables, one compressed, SGD with momentum."""
    with tf.Graph().as_default() as graph:
        strategy = tpu_strategy()
        with strategy.scope():
            variables = [
                keras.Variable(np.ones(shape, np.float32), name="v") for shape in [(61, 50), (10,)]
            ]
            optimizer = sc.ScaleComOptimizer(
                keras.optimizers.SGD(1.0, momentum=0.9), **case.optimizer_arguments(), **arguments
            )
            optimizer.build(variables)
        strategy.run(lambda: optimizer.apply([2 * v.value for v in variables], variables))
    return graph.as_graph_def(add_shapes=True)


def nodes_on_a_core(graph):
    """Nodes of the step, and of the functions that its conditions call."""
    step = [n for n in graph.node if "_tpu_replicate" in n.attr and n.op not in TPU_FRAME]
    return step, [n for f in graph.library.function for n in f.node_def]


@every_case
def test_a_step_can_be_traced_for_a_tpu(case):
    step, branches = nodes_on_a_core(trace_on_tpu(case))
    sums = [n for n in step if n.op == "CrossReplicaSum"]
    # The leader's offsets, the kept values, the small dense tensor.
    expected = list(map(tf.as_dtype, ["int32", case.value_dtype, "float32"]))
    if case.value_dtype == "float16":
        expected.append(tf.float32)  # a bound, for the scale
    summed = [tf.as_dtype(n.attr["T"].type) for n in sums]
    assert collections.Counter(summed) == collections.Counter(expected)
    assert not [n.op for n in step + branches if n.op.startswith(("Collective", "Scalecom"))]
    for node in step:
        for shape in node.attr["_output_shapes"].list.shape:
            assert tf.TensorShape(shape).is_fully_defined(), node


# Both variables dense, or in each of two stages offsets, values and the small one.
@pytest.mark.parametrize(("warmup", "sums"), [("dense", 2), ("ramp", 2 * 3)])
def test_warm_up_is_a_condition_on_the_tpu(warmup, sums):
    graph = trace_on_tpu(CASES[0], warmup_steps=2, warmup=warmup)
    step, branches = nodes_on_a_core(graph)
    assert not [n for n in step if n.op == "CrossReplicaSum"]
    assert len([n for n in branches if n.op == "CrossReplicaSum"]) == sums + 3
    # The branch that most steps do not take stays one operation.
    assert any(f.attr["_noinline"].b for f in graph.library.function)


@every_case
@pytest.mark.slow
def test_training_by_all_reduce_alone(case):
    devices = ["CPU:0", "CPU:1", "CPU:2"]
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 20)).astype(np.float32)
    y = (x @ rng.normal(size=(20, 4))).argmax(axis=1)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((20,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(4),
            ]
        )
        model.compile(
            sc.ScaleComOptimizer(keras.optimizers.SGD(0.1), **case.optimizer_arguments()),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(96)
    before = model.evaluate(dataset, verbose=0)
    model.fit(dataset.repeat(60), verbose=0)
    assert model.evaluate(dataset, verbose=0) < 0.5 * before
    for variable in model.trainable_variables:
        first, *others = [part.numpy() for part in variable.value.values]
        for other in others:
            np.testing.assert_array_equal(other, first)
    (residuals,) = model.optimizer.residuals.values()
    assert len(residuals) == len(devices)
    assert all(np.any(part) for part in residuals)


def test_values_of_8_bits_need_the_collectives_of_this_package():
    """An all-reduce would sum them in 8 bits."""
    case = Case("int8_wire", compression_ratio=10, value_dtype="int8")
    with pytest.raises(ValueError, match=r"bfloat16.*received 'int8'.*MultiWorkerMirroredStrategy"):
        trace_on_tpu(case)
