"""`python -m tf_scalecom doctor`: options, the report as text or JSON, the exit code."""

import argparse
import json
from pathlib import Path

from tf_scalecom.base.command_line import seconds

DESCRIPTION = (
    "Report what this machine has, check TF_CONFIG and, if it names a cluster, whether this worker "
    "and the others reach each other. Start it on all workers, with the TF_CONFIG of the training "
    "and before the training, whose ports it uses. Exit code: 0 if this worker can train, 1 if "
    "there is a problem, which is named."
)
# The output is all there is.
CODE_WITHOUT_OUTPUT = 1
_TIMEOUT_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all options of the command."""
    parser.add_argument(
        "script",
        nargs="?",
        type=Path,
        help="a training script, to be searched for what is left of Horovod; it is not run",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument(
        "--bandwidth",
        action="store_true",
        help="measure how fast bytes go to the next worker, on all workers at once for 2 s",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=_TIMEOUT_SECONDS,
        metavar="S",
        help="how long to wait for the doctors of the other workers; default: %(default)g",
    )


def run_command(_: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Examines this worker and prints what it found; returns the exit code."""
    from tf_scalecom.doctor import examination  # imports TensorFlow

    report = examination.examine(args.bandwidth, args.timeout, args.script)
    print(
        json.dumps(report, indent=2) if args.json else examination.as_text(report, args.bandwidth)
    )
    return 1 if report["problems"] else 0
