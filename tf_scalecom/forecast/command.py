"""`python -m tf_scalecom plan`: options, and the answer as text, JSON or a picture."""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import sys

from tf_scalecom.base.command_line import end, number, positive_number, whole_number
from tf_scalecom.base.pictures import pyplot
from tf_scalecom.base.text_table import text_table
from tf_scalecom.forecast import plots
from tf_scalecom.forecast.advice import advice, gbits
from tf_scalecom.forecast.performance import Hardware
from tf_scalecom.forecast.ways import Scenario, forecasts
from tf_scalecom.wire.route import BUCKET_BYTES

DESCRIPTION = (
    "Predict step time and traffic of a model on a cluster, with dense and compressed gradients, "
    "from the bytes that must move and the speeds given or measured here. docs/plan.md has the "
    "equations and what they leave out."
)
# The output is all there is.
CODE_WITHOUT_OUTPUT = 1
_VALUE_DTYPES = ("float32", "bfloat16")
_OWNERS_DTYPE = "bfloat16"  # with which it was measured
_PLOT_SUFFIXES = (".png", ".pdf", ".svg")
_GBIT = 1e9 / 8  # bytes
# Median of four measurements from 3.4 to 6.7 ns; see docs/plan.md.
_GRPC_HOST_NS = 5.0
_HEADER = (
    "method",
    "MB sent",
    "step ms",
    "compute",
    "kernels",
    "transfer",
    "latency",
    "times as fast",
    "if below Gbit/s",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all options of the command."""
    parser.add_argument("model", help="a .keras file, or module:function that returns the model")
    parser.add_argument(
        "-n",
        "--num-workers",
        type=whole_number(1),
        required=True,
        metavar="W",
        help="workers, each with a link of its own",
    )
    parser.add_argument(
        "--gbits",
        type=positive_number,
        required=True,
        metavar="G",
        help="bandwidth of a worker's link, Gbit/s",
    )
    parser.add_argument(
        "--latency-us",
        type=number,
        default=100.0,
        metavar="L",
        help="time of a small message between workers, runtime included, "
        "microseconds; default: %(default)g",
    )
    compute = parser.add_mutually_exclusive_group(required=True)
    compute.add_argument(
        "--batch",
        type=whole_number(1),
        metavar="B",
        help="samples per replica and step: measure the step here",
    )
    compute.add_argument(
        "--compute-ms",
        type=positive_number,
        metavar="T",
        help="or: time of a replica's step with nothing exchanged, milliseconds",
    )
    parser.add_argument(
        "--ratios",
        type=_ratios,
        default=[25.0, 100.0, 400.0],
        metavar="R,R",
        help='compression ratios, or "auto"; default: 25,100,400',
    )
    parser.add_argument(
        "--ranks",
        type=_ranks,
        default=[2],
        metavar="R,R",
        help="of PowerSGD; default: 2",
    )
    parser.add_argument(
        "--memory-gbytes",
        type=positive_number,
        metavar="M",
        help="bandwidth of a replica's memory, GB/s; default: measured here",
    )
    parser.add_argument(
        "--host-ns",
        type=number,
        default=_GRPC_HOST_NS,
        metavar="H",
        help="time that the runtime spends on a byte sent, nanoseconds; default: "
        "%(default)g, as TensorFlow's gRPC on CPUs; give 0 for NCCL",
    )
    parser.add_argument(
        "--replicas-per-worker",
        type=whole_number(1),
        default=1,
        metavar="R",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--inside-gbits",
        type=positive_number,
        metavar="I",
        help="bandwidth between the replicas of a worker, Gbit/s",
    )
    parser.add_argument(
        "--bytes-per-pack",
        type=whole_number(1),
        default=BUCKET_BYTES,
        metavar="BYTES",
        help="as in CommunicationOptions; default: the package's, %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in SI units")
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        metavar="FILE",
        help="draw 1 to 400 Gbit/s and 8 to 10,000 workers; needs matplotlib",
    )


def run_command(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Predicts what the arguments ask for; returns the exit code."""
    inside_gbits = args.inside_gbits or math.inf
    if args.replicas_per_worker > 1 and not args.gbits <= inside_gbits < math.inf:
        end(
            parser,
            "expected --inside-gbits, not less than --gbits, for several replicas per worker; "
            f"received {args.inside_gbits}: give the bandwidth between them",
        )
    if args.plot and pyplot() is None:
        end(parser, "expected matplotlib for --plot; received none: pip install matplotlib")
    if args.plot:
        _check_plot(parser, args.plot)
    from tf_scalecom.forecast import accuracy, load, measure  # these import TensorFlow

    try:
        with contextlib.redirect_stdout(sys.stderr):  # of what the model's own code prints
            model = load.load_model(args.model)
            compute_seconds = (
                measure.step_seconds(model, args.batch) if args.batch else args.compute_ms / 1e3
            )
        layouts = load.layouts_of(model, args.ratios, _VALUE_DTYPES)
        owners = load.owners_of(model, args.ratios, _OWNERS_DTYPE)
        low_rank = load.low_rank_of(model, args.ranks)
    except ValueError as error:
        end(parser, error)
    memory = args.memory_gbytes * 1e9 if args.memory_gbytes else measure.memory_bytes_per_second()
    hardware = Hardware(
        workers=args.num_workers,
        link_bytes_per_second=args.gbits * _GBIT,
        message_seconds=args.latency_us / 1e6,
        memory_bytes_per_second=memory,
        host_seconds_per_byte=args.host_ns / 1e9,
        replicas_per_worker=args.replicas_per_worker,
        inside_bytes_per_second=inside_gbits * _GBIT,
    )
    scenario = Scenario(
        layouts,
        hardware,
        compute_seconds,
        args.bytes_per_pack,
        owners,
        low_rank,
    )
    said = [*advice(scenario), accuracy.sentence(accuracy.nearest(model))]
    print(_json(scenario, said, args) if args.json else _text(scenario, said, args))
    if args.plot:
        try:
            plots.draw(scenario, args.plot)
        except OSError as error:
            why = error.strerror or error
            end(parser, f"expected to write {args.plot}; received {why}: choose another")
    return 0


def _check_plot(parser, path):
    """Refuses what cannot be written before anything is computed."""
    if path.suffix not in _PLOT_SUFFIXES:
        end(parser, f"expected --plot to end in {', '.join(_PLOT_SUFFIXES)}; received {path}")
    # These functions take a path of any kind: of a loop of links, or longer than there may be.
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        end(parser, f"expected --plot in a folder that is there; received {path}: make the folder")
    is_there = os.path.exists(path)
    is_other = is_there and not os.path.isfile(path)
    if is_other or not os.access(path if is_there else folder, os.W_OK):
        end(
            parser,
            f"expected --plot to be a file that can be written; received {path}: choose another",
        )


def _text(scenario, said, args):
    hardware = scenario.hardware
    source = f"measured here, batch {args.batch}" if args.batch else "given"
    memory = "given" if args.memory_gbytes else "measured here"
    replicas = (
        f" of {hardware.replicas_per_worker} replicas" if hardware.replicas_per_worker > 1 else ""
    )
    elements = sum(tensor.elements for tensor in scenario.layouts[0][1].tensors)
    lines = [
        f"{args.model}: {elements:,} trainable weights; {hardware.workers:,} workers{replicas}, "
        f"{args.gbits:g} Gbit/s, {args.latency_us:g} us a message",
        f"compute {1e3 * scenario.compute_seconds:.3g} ms ({source}), "
        f"memory {hardware.memory_bytes_per_second / 1e9:.3g} GB/s ({memory}), "
        f"{args.host_ns:g} ns of the runtime a byte",
        "",
        text_table(_HEADER, [_line(row) for row in forecasts(scenario)]),
        "",
        *said,
    ]
    return "\n".join(lines)


def _line(row):
    time = row.time
    seconds = (
        time.step_seconds,
        time.compute_seconds,
        time.kernel_seconds,
        time.inside_seconds + time.wire_seconds + time.host_seconds,
        time.latency_seconds,
    )
    bandwidth = row.break_even_bytes_per_second
    return (
        row.method,
        f"{row.exchange.sent_bytes / 1e6:.3f}",
        *(f"{1e3 * s:.2f}" for s in seconds),
        f"{row.speed_up:.2f}",
        "any" if math.isinf(bandwidth) else gbits(bandwidth) if bandwidth else "-",
    )


def _json(scenario, said, args):
    """All numbers; a break-even bandwidth of null is one without a bound."""
    methods = []
    for row in forecasts(scenario):
        methods.append(
            {
                "method": row.method,
                "hierarchical": row.hierarchical,
                **dataclasses.asdict(row.exchange),
                **dataclasses.asdict(row.time),
                "step_seconds": row.time.step_seconds,
                "speed_up": row.speed_up,
                "break_even_bytes_per_second": _finite(row.break_even_bytes_per_second),
            }
        )
    hardware = {name: _finite(v) for name, v in dataclasses.asdict(scenario.hardware).items()}
    return json.dumps(
        {
            "model": args.model,
            "compute_seconds": scenario.compute_seconds,
            "compute_measured": args.batch is not None,
            "bucket_bytes": scenario.bucket_bytes,
            "cluster": hardware,
            "methods": methods,
            "advice": said,
        },
        indent=1,
        allow_nan=False,
    )


def _finite(number):
    return None if math.isinf(number) else number


def _ratios(text: str) -> list:
    return [part if part == "auto" else number(part, least=1.0) for part in text.split(",")]


def _ranks(text: str) -> list[int]:
    return [whole_number(1)(part) for part in text.split(",")]
