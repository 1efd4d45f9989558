"""The command line: `python -m tf_scalecom COMMAND`."""

import argparse
import contextlib
import os
import sys
from typing import TextIO, cast

from tf_scalecom.base.command_line import end, folder, seconds, whole_number
from tf_scalecom.base.lasting_output import LastingOutput
from tf_scalecom.doctor import command as doctor_command
from tf_scalecom.forecast import command as plan_command
from tf_scalecom.launch import launcher
from tf_scalecom.simulate import command as simulate_command


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments (of the process by default), run the command, return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tf_scalecom")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_run(commands)
    _add_command(
        commands,
        "simulate",
        "train with many learners in this process, to compare methods",
        simulate_command,
    )
    _add_command(commands, "plan", "predict step time and traffic on a cluster", plan_command)
    _add_command(
        commands,
        "doctor",
        "report versions, kernels, GPUs, TF_CONFIG and who reaches whom",
        doctor_command,
    )
    args = parser.parse_args(arguments)
    stdout, output = sys.stdout, LastingOutput(sys.stdout, parser.prog)
    with contextlib.redirect_stdout(cast(TextIO, output)):
        try:
            code = args.run_command(args)
            output.flush()
        except BrokenPipeError:
            # The reader of our output has gone (`| head`): end as other programs do then.
            output.lost, code = True, 141  # 128 + SIGPIPE
        except KeyboardInterrupt:
            print(f"{parser.prog}: interrupted", file=sys.stderr)
            return 130  # 128 + SIGINT
    if output.lost:
        # Keeps the interpreter from complaining when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        return code or args.code_without_output
    return code


def _add_run(commands) -> None:
    parser = commands.add_parser(
        "run",
        help="run a training script as several local workers",
        usage="%(prog)s -n N [options] script.py [script arguments]\n"
        "       %(prog)s -n N [options] -m module [module arguments]",
        description="Start N workers of one script on this machine, each with its TF_CONFIG. Their "
        "output is shown line by line and stored in one log file per worker. When one fails, all "
        "end, or start again (--max-restarts).",
    )
    parser.add_argument(
        "-n",
        "--num-workers",
        type=whole_number(1, "workers", "try -n 2"),
        required=True,
        metavar="N",
        help="how many workers to start",
    )
    parser.add_argument(
        "--log-dir",
        type=folder,
        metavar="DIR",
        help="where to put worker-0.log, ...; default: a new one",
    )
    parser.add_argument(
        "--env",
        type=_assignment,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="environment variable for all workers; can be repeated",
    )
    parser.add_argument(
        "--grace-seconds",
        type=seconds,
        default=launcher.GRACE_SECONDS,
        metavar="S",
        help="how long workers may take to end before they are killed; default: %(default)g",
    )
    parser.add_argument(
        "--max-restarts",
        type=whole_number(0, "restarts", "try 3"),
        default=0,
        metavar="K",
        help="after a failure start all workers again, up to K times; for scripts that back up "
        "their training and carry on from there; default: 0",
    )
    parser.add_argument(
        "--min-workers",
        type=whole_number(1, "workers", "try 1"),
        metavar="M",
        help="start one worker less after each failure, down to M, then all N again; "
        "default: always N",
    )
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="show no output of the workers, but the last lines of one that fails; it is in the "
        "log files",
    )
    parser.add_argument(
        "--tensorflow-log",
        action="store_true",
        help="show what TensorFlow's runtime remarks when it starts, too; its warnings and errors "
        "are always shown",
    )
    # "-m" takes the rest of the line, as it does for Python itself.
    parser.add_argument("-m", nargs=argparse.REMAINDER, dest="module", help=argparse.SUPPRESS)
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run_command=lambda args: _run(parser, args), code_without_output=0)


def _add_command(commands, name, help_text, module) -> None:
    """Adds a command that is a module's, which has all that is named below."""
    parser = commands.add_parser(name, help=help_text, description=module.DESCRIPTION)
    module.add_arguments(parser)
    parser.set_defaults(
        run_command=lambda args: module.run_command(parser, args),
        code_without_output=module.CODE_WITHOUT_OUTPUT,
    )


def _run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    command = _python_command(parser, args)
    try:
        return launcher.run(
            command,
            args.num_workers,
            log_dir=args.log_dir,
            env=dict(args.env),
            grace_seconds=args.grace_seconds,
            max_restarts=args.max_restarts,
            min_workers=args.min_workers,
            quiet=args.quiet,
            tensorflow_log=args.tensorflow_log,
            stream=sys.stdout,
        )
    except ValueError as error:
        end(parser, error)


def _python_command(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[str]:
    if args.module is not None:
        if not args.module:
            parser.error("expected a module after -m, received nothing: name the module to run")
        return [sys.executable, "-m", *args.module]
    script = args.script[1:] if args.script[:1] == ["--"] else args.script
    if not script:
        parser.error("expected a script to run, received none: name it after the options")
    if not os.path.isfile(script[0]):
        parser.error(
            f"expected a Python script, received {script[0]!r}, which is not a file here: "
            "check the path (options of the launcher go before it), or use -m for a module"
        )
    return [sys.executable, *script]


def _assignment(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(
            f"expected KEY=VALUE, received {text!r}: write it like TF_CPP_MIN_LOG_LEVEL=2"
        )
    if key == "TF_CONFIG":
        raise argparse.ArgumentTypeError(
            "expected another variable than TF_CONFIG, of which each worker gets its own; received "
            f"{text!r}: leave it out"
        )
    return key, value


if __name__ == "__main__":
    sys.exit(main())
