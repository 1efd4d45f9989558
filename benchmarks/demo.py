"""`make demo`: trains one network twice on two local workers, dense and compressed 100x.

`make demo METHOD=OwnersTopK` compresses by another method, for about the same bytes.

Both arms use the same recipe, seed, initial weights and order of the data; only the optimizer
wrapper differs. Ends with a table of test accuracy, traffic and step time, and exits with an error
when a worker failed or, after a full run on Fashion-MNIST, when a claim did not hold.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKERS = 2
COMPRESSION = {
    "CltK": ["--compression_ratio=100"],
    "OwnersTopK": ["--method=OwnersTopK", "--compression_ratio=92", "--value_dtype=bfloat16"],
}
# Fewer steps leave the learning rate less time to rise: at the full one the network diverges.
QUICK = ["--epochs=2", "--steps_per_epoch=250", "--learning_rate=0.1"]

# The claims of the README.
LEAST_RATIO = 60.0
MOST_POINTS_LOST = 1.0


def main() -> int:
    """Runs both arms, prints the table, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short look: no claims checked")
    parser.add_argument("--method", choices=list(COMPRESSION), default="CltK")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "runs" / "demo")
    arguments = parser.parse_args()

    shared = [f"--seed={arguments.seed}", *(QUICK if arguments.quick else [])]
    started = time.monotonic()
    arms = {}
    for arm, flags in (("dense", []), ("compressed", COMPRESSION[arguments.method])):
        print(f"\n--- {arm}: {' '.join(['train.py', *shared, *flags])}", flush=True)
        arms[arm] = run_arm(arguments.results / arm, [*shared, *flags])
        if arms[arm] is None:
            return 1
    print(table(arms["dense"], arms["compressed"]))
    print(f"Both arms together: {(time.monotonic() - started) / 60:.1f} minutes.")

    if arguments.quick or arms["dense"]["dataset"] != "Fashion-MNIST":
        print("No claim about accuracy or traffic is checked on a quick run or on other data.")
        return 0
    missed = missed_claims(arms["dense"], arms["compressed"])
    for claim in missed:
        print(f"MISSED: {claim}", file=sys.stderr)
    return 1 if missed else 0


def run_arm(folder: pathlib.Path, flags: list[str]) -> dict | None:
    """Trains once under the launcher; returns what the chief measured, None after a failure."""
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    for old_log in folder.glob("*.log"):
        old_log.unlink()
    launcher = [sys.executable, "-m", "tf_scalecom", "run", f"-n{WORKERS}", f"--log-dir={folder}"]
    script = [str(ROOT / "models" / "image" / "train.py"), f"--result={result}", *flags]
    # Two workers share one machine: they must not fight over its GPU, if it has one.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    exit_code = subprocess.run(
        [*launcher, *script], cwd=ROOT, env=environment, check=False
    ).returncode
    if exit_code or not result.exists():
        print(
            f"Expected both workers to finish and write {result}; received exit code {exit_code}. "
            "The failed worker's last lines are above.",
            file=sys.stderr,
        )
        return None
    return json.loads(result.read_text())


def loopback_ratio(dense: dict, compressed: dict) -> float | None:
    """Dense over compressed bytes as the loopback counter saw them; None without a counter."""
    if dense["loopback_bytes"] is None or compressed["loopback_bytes"] is None:
        return None
    return dense["loopback_bytes"] / compressed["loopback_bytes"]


def missed_claims(dense: dict, compressed: dict) -> list[str]:
    """What a full run on Fashion-MNIST must show and did not."""
    missed = []
    ratio = loopback_ratio(dense, compressed)
    if ratio is not None and ratio < LEAST_RATIO:
        missed.append(
            f"expected {LEAST_RATIO:.0f} times less traffic or better; received {ratio:.1f}. "
            "Other programs' loopback traffic counts: run again on a quiet machine."
        )
    lost = 100 * (dense["test_accuracy"] - compressed["test_accuracy"])
    if lost > MOST_POINTS_LOST:
        missed.append(
            f"expected at most {MOST_POINTS_LOST} points of test accuracy lost; received "
            f"{lost:.2f}. Compare with other seeds (--seed) before suspecting the code."
        )
    return missed


def table(dense: dict, compressed: dict) -> str:
    """The two arms side by side."""

    def megabytes(count):
        return "no counter" if count is None else f"{count / 1e6:.3f} MB"

    def times(ratio):
        return "" if ratio is None else f"{ratio:.1f} x less"

    seen, claimed = "loopback_bytes", ("bytes_dense", "bytes_sent")
    rows = [
        ("", "dense", "compressed", ""),
        (
            "test accuracy",
            *(f"{100 * arm['test_accuracy']:.2f} %" for arm in (dense, compressed)),
            f"{100 * (compressed['test_accuracy'] - dense['test_accuracy']):+.2f} points",
        ),
        (
            "bytes per step and worker, loopback counter",
            *(megabytes(arm[seen]) for arm in (dense, compressed)),
            times(loopback_ratio(dense, compressed)),
        ),
        (
            "bytes per step and worker, compression_report()",
            *(megabytes(compressed[name]) for name in claimed),
            times(compressed["bytes_dense"] / compressed["bytes_sent"]),
        ),
        (
            "time per step",
            *(f"{1000 * arm['seconds_per_step']:.1f} ms" for arm in (dense, compressed)),
            f"{dense['seconds_per_step'] / compressed['seconds_per_step']:.2f} x as fast",
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join(
        [
            "",
            f"{dense['dataset']}, {dense['parameters']:,} parameters, {dense['workers']} workers, "
            f"{dense['steps']:,} steps in each arm.",
            f"Both arms: {dense['recipe']}.",
            f"Compressed: {compressed['compression']}.",
            *lines,
            f"Traffic and time: medians without evaluation, after the first "
            f"{dense['ignored_steps']} steps. The loopback counter also sees headers, Keras's own "
            "reductions and other programs.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
