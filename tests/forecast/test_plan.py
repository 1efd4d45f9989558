"""`plan`: the performance model's limits and bytes, its validation, and the command."""

import dataclasses
import json
import math
import statistics
import zipfile

import keras
import pytest
import tensorflow as tf
from reports import plan as plan_report

import tf_scalecom as sc
from tf_scalecom.__main__ import main
from tf_scalecom.forecast import (
    Hardware,
    Scenario,
    accuracy,
    advice,
    forecasts,
    load,
    measure,
    performance,
)
from tf_scalecom.wire.layout import Layout, tensor_layout
from tf_scalecom.wire.route import BUCKET_BYTES, COLLECTIVES

ONE_BUCKET = 1 << 30
GBIT = 1e9 / 8
HARDWARE = Hardware(
    workers=8, link_bytes_per_second=GBIT, message_seconds=1e-4, memory_bytes_per_second=2e10
)


def small_model():
    """A model whose variables differ in size and shape; 100,625 weights."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(37, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def fails():
    raise OSError("no data")


def not_a_model():
    return "a string"


def unbuilt_model():
    return keras.Sequential([keras.layers.Dense(3)])


def endless_model():
    sequence = keras.Input((None, 8), name="sequence")
    return keras.Model(sequence, keras.layers.Dense(4)(sequence))


def plans(elements=1_000_000, ratios=(25, 100, 400)):
    return tuple(
        (f"{r}x", Layout((tensor_layout("w", (elements,), "float32", r),))) for r in ratios
    )


def scenario(compute_seconds=0.01, layouts=None, bucket_bytes=ONE_BUCKET, **changes):
    hardware = dataclasses.replace(HARDWARE, **changes)
    return Scenario(layouts or plans(), hardware, compute_seconds, bucket_bytes)


def step_seconds(of):
    return {f.method: f.time.step_seconds for f in forecasts(of)}


# The model.


def test_bytes_are_those_of_the_optimizers_report():
    device = ["/cpu:0"]
    strategy = tf.distribute.MirroredStrategy(
        device, cross_device_ops=sc.ScaleComAllReduce.for_devices(device)
    )
    for ratio, value_dtype in ((25, "float32"), (100, "bfloat16"), ("auto", "float32")):
        with strategy.scope():
            model = small_model()
            optimizer = sc.ScaleComOptimizer(keras.optimizers.SGD(), ratio, value_dtype=value_dtype)
            optimizer.build(model.trainable_variables)
        layouts = load.layouts_of(model, [ratio], [value_dtype])
        for workers in (2, 5, 1000):
            report = optimizer.compression_report(num_replicas=workers)
            dense, half, compressed = forecasts(
                scenario(layouts=layouts, workers=workers, bucket_bytes=BUCKET_BYTES)
            )
            assert compressed.exchange.sent_bytes == report.bytes_sent
            assert dense.exchange.sent_bytes == report.bytes_dense
            assert half.exchange.sent_bytes == report.bytes_dense / 2


@pytest.mark.parametrize("workers", [2, 5, 64])
def test_bytes_of_other_methods_are_those_of_their_reports(workers):
    model = small_model()
    of_owners = load.owners_of(model, [25], "bfloat16")
    of_low_rank = load.low_rank_of(model, [2])
    layouts = load.layouts_of(model, [25], ["float32"])
    hardware = dataclasses.replace(HARDWARE, workers=workers)
    *_, owners, low_rank = forecasts(
        Scenario(layouts, hardware, 0.01, BUCKET_BYTES, of_owners, of_low_rank)
    )
    for forecast, method in (
        (owners, sc.methods.OwnersTopK(25, value_dtype="bfloat16")),
        (low_rank, sc.methods.PowerSGD(rank=2)),
    ):
        plan = method.plan(model.trainable_variables)
        assert forecast.exchange.sent_bytes == method.bytes_sent(plan, workers, COLLECTIVES)
        assert forecast.exchange.path_bytes == forecast.exchange.sent_bytes
        assert forecast.layout is None


@pytest.mark.parametrize(
    ("layer", "task"),
    [
        (keras.layers.Dense(3), accuracy.IMAGES),
        (keras.layers.Bidirectional(keras.layers.LSTM(3)), accuracy.SPEECH),
        (keras.layers.MultiHeadAttention(2, 3), accuracy.TRANSLATION),
    ],
)
def test_the_nearest_task_has_layers_like_the_models(layer, task):
    sequence = keras.Input((5, 8))
    is_attention = isinstance(layer, keras.layers.MultiHeadAttention)
    inputs = (sequence, sequence) if is_attention else (sequence,)
    model = keras.Model(sequence, layer(*inputs))
    assert accuracy.nearest(keras.Sequential([keras.Input((5, 8)), model])) is task
    said = accuracy.sentence(task)
    assert all(of.method in said for of in task.lost) and "measure it" in said


def test_an_exchange_counted_by_hand():
    # 1,000,000 elements at 100x are 10,000 values and 10,000 offsets of one byte.
    ((_, layout),) = plans(ratios=(100,))
    exchange = performance.compressed_exchange(layout, ONE_BUCKET, workers=4)
    ring = 2 * 3 / 4
    flag = 4
    assert exchange.sent_bytes == (40_000 + flag) * ring + 10_000 * 3 / 4
    # The root sends to two, of which the first sends to the fourth.
    assert exchange.path_bytes == (40_000 + flag) * ring + 3 * 10_000
    assert exchange.messages == 2 * 3 + 2
    # Gradient and residual are read, their sum and that of all replicas written.
    assert exchange.kernel_bytes == 4_000_000 * (2 + 1 + 1)

    # Without that dense sum and an update, of which both would be read and variables written.
    in_place = performance.compressed_exchange(layout, ONE_BUCKET, 4, in_place=True)
    assert in_place.kernel_bytes == 4_000_000 * (2 + 1 - 3)

    half = performance.float16_exchange(layout, 4)
    assert half.sent_bytes == 2_000_000 * ring
    # Two casts, each of which reads one of the two and writes the other.
    assert half.kernel_bytes == 2 * (4_000_000 + 2_000_000)

    hierarchical = performance.hierarchical_exchange(layout, ONE_BUCKET, 4, replicas_per_worker=8)
    assert hierarchical.sent_bytes == exchange.sent_bytes
    assert hierarchical.inside_bytes == 2 * 7 * 4_000_000
    assert hierarchical.kernel_bytes == exchange.kernel_bytes + 9 * 4_000_000

    flat = performance.compressed_exchange(layout, ONE_BUCKET, 4, replicas_per_worker=8)
    assert flat.messages == 2 * 31 + 2
    assert flat.inside_bytes == (2 + 2 + 1) * 10_000


def test_each_dtype_and_each_bucket_has_its_own_messages():
    tensors = [tensor_layout("w", (100_000,), "float32", 10) for _ in range(3)]
    tensors.append(tensor_layout("b", (10,), "float32", 10))
    layout = Layout(tuple(tensors), value_dtype="bfloat16")
    ring, narrow, tree = 2 * 7, 1 + 7, 3
    one = performance.compressed_exchange(layout, ONE_BUCKET, workers=8)
    assert one.messages == ring + narrow + tree
    three = performance.compressed_exchange(layout, 30_000, workers=8)
    assert three.messages == (ring + narrow + tree) + 2 * (narrow + tree)


def test_a_broadcast_takes_the_slowest_way_down_the_tree():
    for nodes in range(1, 70):
        arrival = {0: (0, 0)}
        for node in range(nodes):
            children = [c for c in (2 * node + 1, 2 * node + 2) if c < nodes]
            for child in children:
                depth, sends = arrival[node]
                arrival[child] = (depth + 1, sends + len(children))
        tree = performance._Tree(nodes)
        assert (tree.depth, tree.sends) == tuple(map(max, zip(*arrival.values(), strict=True)))


def test_without_limits_a_step_is_compute():
    unlimited = scenario(
        link_bytes_per_second=math.inf, message_seconds=0.0, memory_bytes_per_second=math.inf
    )
    assert set(step_seconds(unlimited).values()) == {0.01}


def test_one_worker_exchanges_nothing():
    alone = scenario(workers=1)
    for forecast in forecasts(alone):
        assert dataclasses.astuple(forecast.exchange) == (0, 0, 0, 0, 0)
        assert forecast.break_even_bytes_per_second == 0
    assert advice(alone) == ["Compression will not help you: one replica exchanges nothing."]


@pytest.mark.parametrize(
    ("quantity", "slow", "fast"),
    [
        ("link_bytes_per_second", GBIT, 10 * GBIT),
        ("message_seconds", 1e-3, 1e-5),
        ("workers", 16, 4),
        ("host_seconds_per_byte", 1e-9, 0.0),
    ],
)
def test_a_better_cluster_takes_less_time(quantity, slow, fast):
    slower, faster = (step_seconds(scenario(**{quantity: v})) for v in (slow, fast))
    assert all(faster[method] < slower[method] for method in slower)


def test_traffic_does_not_grow_with_workers_beyond_the_ring():
    few, many = (forecasts(scenario(workers=n)) for n in (2, 10_000))
    for small, large in zip(few, many, strict=True):
        assert small.exchange.sent_bytes < large.exchange.sent_bytes
        assert large.exchange.sent_bytes < 2 * small.exchange.sent_bytes


def test_at_the_break_even_bandwidth_both_take_as_long():
    for forecast in forecasts(scenario())[1:]:
        bandwidth = forecast.break_even_bytes_per_second
        for factor, faster in ((0.9, True), (1.1, False)):
            times = step_seconds(scenario(link_bytes_per_second=factor * bandwidth))
            assert (times[forecast.method] < times["dense"]) == faster
        times = step_seconds(scenario(link_bytes_per_second=bandwidth))
        assert times[forecast.method] == pytest.approx(times["dense"], rel=1e-9)


def test_faster_at_any_bandwidth_where_the_runtime_is_the_limit():
    # A byte costs the host more than its share of the kernels.
    for forecast in forecasts(scenario(host_seconds_per_byte=1e-8))[1:]:
        assert forecast.break_even_bytes_per_second == math.inf


# Its validation.


def test_predicts_what_the_network_benchmark_measured():
    predicted = [c for c in plan_report.cells(plan_report.read()) if not c.calibrates]
    errors = [abs(cell.error) for cell in predicted]
    assert len(errors) >= 30
    assert statistics.median(errors) < 0.1
    assert sum(error <= 0.25 for error in errors) >= 0.9 * len(errors)
    for rate in ("100mbit", "1gbit"):
        assert any(cell.rate == rate for cell in predicted)


def test_the_papers_figures_follow_from_its_assumptions():
    """Within 5 %.

    "2x" may stand for 1.95 to 2.05, and with the small batch at 300 TFLOP/s, from which the model
    has its bandwidth, 4.1 may be 4.05 to 4.15: 3.5 % together. The larger batch is off by 1.8 %.
    """
    figures = {figure.what: figure for figure in plan_report.paper_figures()}
    for batch in plan_report.PAPER_SPEED_UPS:
        figure = figures[f"speed-up at 100 TFLOP/s, {batch}"]
        assert figure.predicted == pytest.approx(figure.paper, rel=0.05)
    index_share = figures["indices / traffic saved"]
    assert index_share.predicted == pytest.approx(index_share.paper, rel=0.1)  # "about 0.5 %"
    shares = [plan_report.communication_share(n) for n in (128, 1_000, 10_000)]
    assert all(share < plan_report.PAPER_SHARE_COMPRESSED for share in shares)
    assert shares == pytest.approx([shares[0]] * 3, rel=0.01)  # it stays there


def test_the_docs_have_the_tables_of_the_committed_measurements():
    page = plan_report.PAGE.read_text()
    assert plan_report.step_table(plan_report.cells(plan_report.read())) in page
    assert plan_report.paper_table(plan_report.paper_figures()) in page


# Its advice.


def test_advice_on_a_slow_link_is_the_ratio_that_drops_least():
    said = " ".join(advice(scenario(compute_seconds=1.0, link_bytes_per_second=GBIT / 50)))
    # 400x would gain less than 5 %.
    assert "Use 100x:" in said
    assert "400x, gains less than 5 %" in said
    assert "float16" not in said


def test_advice_on_a_fast_link_says_that_compression_does_not_help():
    (said,) = advice(scenario(link_bytes_per_second=400 * GBIT))
    assert said.startswith("Compression will not help you: dense gradients take")
    assert "On links of less than" in said


def test_advice_names_no_way_that_gains_nothing():
    advised = 0
    for gbits in range(1, 60):
        of = scenario(link_bytes_per_second=gbits * GBIT)
        speed_ups = {f.method: f.speed_up for f in forecasts(of)[2:]}
        first = advice(of)[0]
        if first.startswith("Use "):
            advised += 1
            named = speed_ups[first.removeprefix("Use ").split(":")[0]]
            assert named >= 1.05
            assert named * 1.05 >= max(speed_ups.values())
        else:
            assert max(speed_ups.values()) < 1.05
    assert 0 < advised < 59


def test_advice_when_half_the_bytes_are_enough():
    said = " ".join(advice(scenario(compute_seconds=0.1, link_bytes_per_second=7 * GBIT)))
    assert "Casting gradients to float16" in said


def test_advice_against_many_buckets_where_messages_are_slow():
    layers = [tensor_layout("w", (1_000_000,), "float32", 25) for _ in range(8)]
    many = scenario(
        layouts=(("25x", Layout(tuple(layers))),), bucket_bytes=BUCKET_BYTES, workers=256
    )
    assert any("in one bucket" in sentence for sentence in advice(many))
    one = dataclasses.replace(many, bucket_bytes=ONE_BUCKET)
    assert not any("in one bucket" in sentence for sentence in advice(one))


# What is measured here.


def test_a_step_of_any_nest_of_inputs_is_measured():
    inputs = {
        "ids": keras.Input((6,), dtype="int32", name="ids"),
        "x": keras.Input((6, 4), name="x"),
    }
    embedded = keras.layers.Embedding(50, 4)(inputs["ids"])
    model = keras.Model(inputs, [keras.layers.Dense(3)(embedded + inputs["x"]), embedded])
    model.compile("adam", "mse")
    assert 0 < measure.step_seconds(model, batch=4) < 10


def test_the_memory_is_measured():
    assert 1e8 < measure.memory_bytes_per_second() < 1e14


# The command.

PLAN = ["plan", "test_plan:small_model", "-n", "4", "--gbits", "1"]
GIVEN = ["--compute-ms", "10", "--memory-gbytes", "20"]


def test_text(capsys):
    assert main([*PLAN, *GIVEN]) == 0
    shown = capsys.readouterr().out
    assert "100,625 trainable weights; 4 workers, 1 Gbit/s" in shown
    assert "compute 10 ms (given), memory 20 GB/s (given)" in shown
    methods = [line.split("  ")[0] for line in shown.splitlines()[4:12]]
    assert methods == [
        "dense",
        "dense float16",
        "25x",
        "25x bfloat16",
        "100x",
        "100x bfloat16",
        "400x",
        "400x bfloat16",
    ]


def test_json_of_a_saved_model(capsys, tmp_path):
    path = tmp_path / "model.keras"
    small_model().save(path)
    cluster = ["--replicas-per-worker", "2", "--inside-gbits", "100", "--ratios", "50,auto"]
    assert main(["plan", str(path), *PLAN[2:], *GIVEN, *cluster, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["cluster"]["link_bytes_per_second"] == GBIT
    assert answer["compute_seconds"] == 0.01
    assert answer["compute_measured"] is False
    assert len(answer["methods"]) == 2 + 2 * 2 * 2 + 2 + 1
    dense, half, *compressed = answer["methods"]
    assert dense["sent_bytes"] == 4 * 100_625 * 2 * 7 / 8
    assert half["sent_bytes"] == dense["sent_bytes"] / 2
    assert [m["method"] for m in compressed if m["hierarchical"]] == [
        "50x, hierarchical",
        "50x bfloat16, hierarchical",
        "auto, hierarchical",
        "auto bfloat16, hierarchical",
    ]
    for method in answer["methods"]:
        causes = ("compute", "kernel", "inside", "wire", "host", "latency")
        assert method["step_seconds"] == sum(method[f"{cause}_seconds"] for cause in causes)


def test_the_step_is_measured_when_a_batch_is_given(capsys):
    assert main([*PLAN, "--batch", "4", "--memory-gbytes", "20", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["compute_measured"] is True
    assert answer["compute_seconds"] > 0


def test_plot(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plan.png"
    assert main([*PLAN, *GIVEN, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "nothing.keras", *PLAN[2:], *GIVEN], "'nothing.keras', which is no file here"),
        (["plan", "nothing", *PLAN[2:], *GIVEN], "expected a .keras file or an import path"),
        (["plan", "no_such:thing", *PLAN[2:], *GIVEN], "No module named 'no_such'"),
        (["plan", "test_plan:nothing", *PLAN[2:], *GIVEN], "has no attribute 'nothing'"),
        (["plan", "test_plan:plan_report", *PLAN[2:], *GIVEN], "'module' object is not callable"),
        (["plan", "test_plan:not_a_model", *PLAN[2:], *GIVEN], "to return a keras.Model; received"),
        (["plan", "test_plan:unbuilt_model", *PLAN[2:], *GIVEN], "Give it an Input"),
        (["plan", "test_plan:endless_model", *PLAN[2:], "--batch", "2"], "give --compute-ms"),
        (["plan", "test_plan:small_model", "-n", "0", "--gbits", "1", *GIVEN], "from 1 to"),
        (["plan", "test_plan:fails", *PLAN[2:], *GIVEN], "fails: OSError: no data (line "),
        ([*PLAN[:-1], "0", *GIVEN], "expected a number from 1e-09 to 1e+12, received '0'"),
        ([*PLAN[:-1], "1e-320", *GIVEN], "expected a number from 1e-09 to 1e+12"),
        ([*PLAN, "--compute-ms", "1e300"], "expected a number from 1e-09 to 1e+12"),
        ([*PLAN[:-1], "fast", *GIVEN], "from 1e-09 to 1e+12, received 'fast'"),
        ([*PLAN, *GIVEN, "--ratios", "100,0.5"], "from 1 to 1e+12, received '0.5'"),
        ([*PLAN, *GIVEN, "--replicas-per-worker", "8"], "expected --inside-gbits"),
        (PLAN, "one of the arguments --batch --compute-ms is required"),
    ],
)
def test_bad_input(capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"not a zip file", "received a file of another kind"), (None, "received a damaged file")],
)
def test_a_file_that_does_not_load_is_named(capsys, tmp_path, content, message):
    path = tmp_path / "model.keras"
    if content is None:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("metadata.json", "{}")
    else:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as end:
        main(["plan", str(path), *PLAN[2:], *GIVEN])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        ("a.foo", "to end in"),
        ("nowhere/a.png", "in a folder that is there"),
        ("folder.png", "a file that can be written"),
    ],
)
def test_a_plot_that_cannot_be_written_is_refused_first(capsys, tmp_path, plot, message):
    pytest.importorskip("matplotlib")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SystemExit) as end:
        main([*PLAN, *GIVEN, "--plot", str(tmp_path / plot)])
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert message in err and not out


def test_a_plot_that_fails_as_it_is_written_is_one_line(capsys):
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit) as end:
        main([*PLAN, *GIVEN, "--plot", "/proc/plan.png"])
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert "times as fast" in out  # the answer itself is there
    assert "expected to write /proc/plan.png; received No such file" in err
