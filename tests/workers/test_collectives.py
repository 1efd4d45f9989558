"""Collectives: right on any shape, bounded in keys and memory, alike in eager mode and graphs."""

import gc
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_scalecom as sc
from tf_scalecom.workers.collectives import InstanceKeys


def launcher_of(strategy):
    (launcher,) = strategy.extended._cross_device_ops._launchers
    return launcher


def ranks(strategy):
    return strategy.extended._id_in_cluster, strategy.num_replicas_in_sync


def test_keys_depend_on_the_signature_alone():
    one, other = InstanceKeys(), InstanceKeys()
    signatures = [("reduce", "float32", n, site) for n in range(300) for site in ("", "a")]
    keys = {signature: one.first(signature) for signature in signatures}
    assert keys == {signature: other.first(signature) for signature in reversed(signatures)}
    assert len(set(keys.values())) == len(signatures)
    assert all(2**30 <= key < 2**31 for key in keys.values())


def test_ranges_of_keys_do_not_overlap():
    keys = InstanceKeys()
    taken = set()
    for length in (1, 3, 512):
        for n in range(50):
            first = keys.first(("gather", n, length), length)
            mine = set(range(first, first + length))
            assert not mine & taken and first + length <= 2**31
            taken |= mine


def test_senders_and_steps_are_told_apart():
    """Workers that each take themselves for the sender, or sum other gradients, do not meet."""
    keys = InstanceKeys()
    signature = ("broadcast", "int32", 7, "")
    first = keys.first(signature, 3)
    words = [keys.describe(first + sender)[0] for sender in range(3)]
    assert words[2] == "broadcast of int32 [7], from replica 2" and len(set(words)) == 3
    keys.step = "of a"
    other = keys.first(signature, 3)
    assert abs(other - first) >= 3
    assert keys.describe(other) == ("broadcast of int32 [7], of a, from replica 0", "of a")


DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("complex64", "complex128", "qint8", "quint8", "qint32", "string"),
]


def create_of_each_dtype(strategy):
    rank, _ = ranks(strategy)

    def value(dtype):
        if dtype == "string":
            return tf.constant([["ab", "", f"worker {rank}"]])
        if dtype.startswith("q"):
            bits = {"qint8": tf.int8, "quint8": tf.uint8, "qint32": tf.int32}[dtype]
            return tf.bitcast(tf.constant([[0, 1, 2 + rank]], bits), dtype)
        numbers = np.array([[0, 1, 2 + rank]], np.float32)
        return tf.cast(numbers * 1j if dtype.startswith("complex") else numbers, dtype)

    with strategy.scope():
        variables = [tf.Variable(value(dtype)) for dtype in DTYPES]
        try:
            tf.Variable(tf.bitcast(tf.constant([1], tf.int16), tf.qint16))
            error = None
        except ValueError as refused:
            error = str(refused)
        # A trained one, beside one of another dtype.
        trained = [keras.Variable(np.ones(3), dtype=dtype) for dtype in ("complex64", "float32")]
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(trained)

    def step():
        optimizer.apply([tf.constant([0, 1 + 2j, rank], tf.complex64), tf.ones(3)], trained)

    strategy.run(tf.function(step, autograph=False))
    return [str(v.numpy().tolist()) for v in variables], error, trained[0].numpy().tolist()


@pytest.mark.quick
def test_variables_of_every_dtype_begin_with_the_first_workers_value(cluster):
    results = cluster(2).run(create_of_each_dtype)
    for values, error, trained in results:
        assert values == results[0][0]
        for dtype, value in zip(DTYPES, values, strict=True):
            last = {"string": "b'worker 0'", "bool": "True"}.get(dtype, "2")
            assert last in value and "3" not in value, (dtype, value)
        assert "expected a dtype among float16, " in error and "received qint16" in error
        assert trained == [1, -1 - 4j, 0]


def broadcast_from_all(strategy, steps):
    """Six broadcasts of one signature per step: the source changes from each to the next."""
    launcher = launcher_of(strategy)
    rank, size = ranks(strategy)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def step(t):
        received = []
        for i in range(6):
            source = (t + i) % size
            received.append(
                launcher.broadcast(
                    lambda i=i: tf.fill([5], (rank + 1) * (t + i + 1)),
                    is_source=tf.equal(source, rank),
                    source_rank=source,
                    shape=[5],
                    dtype=tf.int32,
                    control_input=t,
                )
            )
        return tf.stack(received)

    for t in range(steps):
        expected = [[((t + i) % size + 1) * (t + i + 1)] * 5 for i in range(6)]
        np.testing.assert_array_equal(step(t), expected)
        if t % 10 == 0:  # the same key from eager mode
            eager = launcher.broadcast(
                tf.fill([5], rank + t), tf.equal(t % size, rank), t % size, [5], tf.int32
            )
            np.testing.assert_array_equal(eager, [t % size + t] * 5)


@pytest.mark.parametrize("num_workers", [2, 3])
def test_broadcast_from_a_source_known_at_run_time(cluster, num_workers):
    cluster(num_workers).run(broadcast_from_all, 50, timeout=90)


def send_dtypes(strategy):
    rank, _ = ranks(strategy)
    launcher = launcher_of(strategy)
    for dtype in (tf.bool, tf.uint8, tf.float16, tf.bfloat16, tf.float64, tf.int64):
        value = tf.cast([rank, 1 - rank], dtype)
        received = launcher.broadcast(value, tf.equal(rank, 1), 1, [2], dtype)
        gathered = launcher.all_gather(value, 0)
        assert received.dtype == gathered.dtype == dtype
        np.testing.assert_array_equal(tf.cast(received, tf.int32), [1, 0])
        np.testing.assert_array_equal(tf.cast(gathered, tf.int32), [0, 1, 1, 0])


@pytest.mark.quick
def test_every_dtype(cluster):
    cluster(2).run(send_dtypes)


def collect_any_shapes(strategy, steps):
    launcher = launcher_of(strategy)
    rank, size = ranks(strategy)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None, 3], tf.float32)]
    )
    def step(same, own):
        slices = tf.IndexedSlices(own, tf.range(tf.shape(own)[0]), tf.constant([1000, 3]))
        return (
            launcher.all_reduce(same),
            launcher.all_gather(own, 0),
            launcher.all_gather(tf.transpose(own) > 1, 1),
            launcher.all_reduce_indexed_slices(slices),
        )

    rng = np.random.default_rng(0)  # alike on all workers
    for _ in range(steps):
        shape = rng.integers(0, 40, 2)
        rows = rng.integers(0, 300, size) * (rng.random(size) < 0.7)
        own = np.full((rows[rank], 3), rank + 1.0, np.float32)
        reduced, gathered, flags, slices = step(np.full(shape, rank + 1.0, np.float32), own)
        all_rows = np.concatenate([np.full((n, 3), r + 1.0) for r, n in enumerate(rows)])
        np.testing.assert_array_equal(reduced, np.full(shape, size * (size + 1) / 2))
        np.testing.assert_array_equal(gathered, all_rows)
        np.testing.assert_array_equal(flags, all_rows.T > 1)
        np.testing.assert_array_equal(slices.values, all_rows)
        np.testing.assert_array_equal(slices.indices, np.concatenate([np.arange(n) for n in rows]))
    return len(launcher._keys._ranges)


def test_shapes_known_at_run_time_only(cluster):
    few = cluster(3).run(collect_any_shapes, 5, timeout=90)
    assert cluster(3).run(collect_any_shapes, 40, timeout=90) == few


def gather_in_eager_mode(strategy):
    rank, _ = ranks(strategy)
    value = tf.fill([rank + 1, 2], rank)
    return strategy.gather(value, axis=0).numpy().tolist()


@pytest.mark.quick
def test_gather_in_eager_mode(cluster):
    assert cluster(2).run(gather_in_eager_mode) == [[[0, 0], [1, 1], [1, 1]]] * 2


def gather_bytes(strategy):
    rank, size = ranks(strategy)
    launcher = launcher_of(strategy)
    keys_before = len(launcher._keys._ranges)
    for length in (0, 1, 251, 252, 253, 508, 509, 5000):
        # The last worker has the longest, and the first none.
        own = [bytes([r + 1]) * (length * r // (size - 1)) for r in range(size)]
        assert launcher.all_gather_bytes(own[rank], site="lengths") == own
    return len(launcher._keys._ranges) - keys_before


@pytest.mark.quick
def test_bytes_of_any_length_need_few_keys(cluster):
    assert max(cluster(3).run(gather_bytes)) < 12


def resident_megabytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def grow(strategy, steps):
    """Growth of the resident memory over steps of 20 collectives each, in graphs and eager."""
    launcher = launcher_of(strategy)
    _, size = ranks(strategy)

    @tf.function
    def step(x):
        for _ in range(19):
            x = launcher.all_reduce(x / size)
        return x

    def run(n):
        for _ in range(n):
            x = step(tf.ones([1000]))
            launcher.all_reduce(x)
        assert (x.numpy() == 1).all()

    gc.collect()  # what other tests have left here
    run(100)
    before = resident_megabytes()
    run(steps)
    return resident_megabytes() - before


@pytest.mark.slow
def test_memory_is_flat(cluster):
    """TensorFlow's own keys would leak 2 MB or more in these 100 steps."""
    for growth in cluster(2).run(grow, 100, timeout=300):
        assert growth < 1


def collectives_of_a_step(strategy, option, value):
    """Under a new strategy with a communication option: (kind, hint) of each call, and the sums."""
    Implementation = tf.distribute.experimental.CommunicationImplementation
    if option == "implementation":
        value = Implementation[value]
    options = tf.distribute.experimental.CommunicationOptions(**{option: value})
    other = sc.MultiWorkerMirroredStrategy(communication_options=options)
    with other.scope():
        variables = [keras.Variable(np.zeros(10_000, np.float32), name=f"w{i}") for i in range(4)]
        optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(1.0), 100)
        optimizer.build(variables)

    def replica_step():
        optimizer.apply([tf.ones([10_000]) for _ in variables], variables)

    step = tf.function(lambda: other.run(replica_step))
    graph = step.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    calls = {
        (node.op, node.attr["communication_hint"].s.decode())
        for node in nodes
        if node.op.startswith("Collective")
    }
    reduces = sum(node.op == "CollectiveReduceV2" for node in nodes)
    step()
    return calls, reduces, [float(-variable.numpy().sum()) for variable in variables]


# 4 variables of 100 kept values of 5 bytes each: one bucket by default.
@pytest.mark.parametrize(
    "option, value, hint, buckets",
    [
        ("implementation", "RING", "ring", 1),
        ("bytes_per_pack", 1000, "auto", 2),
    ],
)
def test_communication_options(cluster, option, value, hint, buckets):
    for calls, reduces, sums in cluster(2).run(collectives_of_a_step, option, value):
        assert {kind for kind, _ in calls} == {
            "CollectiveReduceV2",
            "CollectiveBcastSendV2",
            "CollectiveBcastRecvV2",
        }
        assert {h for _, h in calls} == {hint}
        assert reduces == buckets
        assert sums == [200.0] * 4  # of two workers, at 100 places


def threads_of_further_strategies(strategy):
    """Threads of this package at the start, and with three more strategies, which have trained."""

    def own_threads():
        return sorted(t.name for t in threading.enumerate() if t.name.startswith("scalecom-"))

    before = own_threads()
    for _ in range(3):
        further = sc.MultiWorkerMirroredStrategy()
        with further.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(sc.ScaleComOptimizer(keras.optimizers.SGD(0.1)), "mse")
        model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    return before, own_threads()


def test_further_strategies_leave_no_threads(cluster):
    for before, after in cluster(2).run(threads_of_further_strategies):
        assert before == after == ["scalecom-note", "scalecom-watchdog"]
