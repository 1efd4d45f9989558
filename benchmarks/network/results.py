"""Results of cells on disk, and what follows from them: step times, bytes, limits."""

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Sequence

from matrix import FLOOR, FRAMEWORKS, MODELS, MWMS, PASS_BYTES, TORCH_FLOOR, Cell

from tf_scalecom.base.whole_files import write_whole

# Ethernet 14, IPv4 20, TCP with time stamps 32.
_HEADER_BYTES = 66


@dataclasses.dataclass(frozen=True)
class Row:
    """What one cell has shown. Times in ms, of one step; bytes of one worker in one step.

    Attributes:
        ms, ms_min, ms_max: median, least and largest over the rounds.
        of_mwms: ms / that of TensorFlow's own strategy in the same cell; None without it.
        mb: MB that the interface has counted, headers included.
        payload_mb: the same without the headers of Ethernet, IP and TCP.
        formula_mb: what compression_report() or the ring's formula says; None where there is none.
        floor_ms: forward, backward and update of as many workers at once, nothing exchanged.
        kernel_ms: the bytes that the kernels read and write / bandwidth of a copy. An update moves
            as many in a dense step, and none in a compressed one, which is of SGD.
        wire_ms: payload / payload of one TCP flow over such a link.
        limit_ms: floor, of which a compressed step has the kernels in place of the update, and
            wire; None where no floor was measured.
        of_limit: ms / limit_ms.
        others_cores: cores that other programs kept busy meanwhile.
    """

    model: str
    workers: int
    rate: str
    arm: str
    ms: float
    ms_min: float
    ms_max: float
    of_mwms: float | None
    mb: float
    payload_mb: float
    formula_mb: float | None
    floor_ms: float | None
    kernel_ms: float
    wire_ms: float
    limit_ms: float | None
    of_limit: float | None
    others_cores: float


def path_of(cell: Cell, results: pathlib.Path) -> pathlib.Path:
    """The file of a cell's result."""
    return results / "cells" / f"{cell.key}.json"


def save(cell: Cell, results: pathlib.Path, **measured) -> None:
    """Writes a cell's result: whole, or not at all."""
    path = path_of(cell, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"cell": dataclasses.asdict(cell), **measured}, indent=1)
    write_whole(path, lambda file: file.write(text.encode()))


def load(plan: Sequence[Cell], results: pathlib.Path) -> dict[Cell, dict]:
    """Cell -> what was saved."""
    return {cell: json.loads(path_of(cell, results).read_text()) for cell in plan}


def rows(measured: dict[Cell, dict]) -> list[Row]:
    """One row a cell, in the same order."""
    return [_row(cell, measured) for cell in measured]


def _row(cell, measured):
    rounds = measured[cell]["rounds"]
    conditions = measured[cell]["conditions"]
    times = [1e3 * r["step_seconds"] for r in rounds]
    ms = statistics.median(times)
    sent = statistics.median(r["bytes"] for r in rounds)
    payload = statistics.median(r["bytes"] - _HEADER_BYTES * r["packets"] for r in rounds)
    about = measured[cell]["about"]
    kernel_bytes = PASS_BYTES * about.get("compressed_elements", 0)
    floor_arm = FLOOR if cell.arm in FRAMEWORKS["tf"] else TORCH_FLOOR
    floor_ms = _median_ms(dataclasses.replace(cell, arm=floor_arm), measured)
    mwms_ms = _median_ms(dataclasses.replace(cell, arm=MWMS), measured)
    kernel_ms = 1e3 * kernel_bytes / conditions["copy_bandwidth"]
    wire_ms = 1e3 * payload / conditions["goodput"][cell.rate]
    limit_ms = None if floor_ms is None else floor_ms + wire_ms
    formula = about.get("claimed_bytes") or _dense_bytes(cell)
    return Row(
        **dataclasses.asdict(cell),
        ms=ms,
        ms_min=min(times),
        ms_max=max(times),
        of_mwms=mwms_ms and ms / mwms_ms,
        mb=sent / 1e6,
        payload_mb=payload / 1e6,
        formula_mb=formula and formula / 1e6,
        floor_ms=floor_ms,
        kernel_ms=kernel_ms,
        wire_ms=wire_ms,
        limit_ms=limit_ms,
        of_limit=limit_ms and ms / limit_ms,
        others_cores=statistics.median(r["others_cores"] for r in rounds),
    )


def _median_ms(cell, measured):
    if cell not in measured:
        return None
    return 1e3 * statistics.median(r["step_seconds"] for r in measured[cell]["rounds"])


def _dense_bytes(cell):
    """A ring all-reduce of all parameters, in the dtype of the arm; None for other arms."""
    itemsize = {MWMS: 4, "DDP": 4, "MWMS fp16": 2, "DDP fp16": 2}.get(cell.arm)
    ring = 2 * (cell.workers - 1) / cell.workers
    return itemsize and itemsize * MODELS[cell.model].parameters * ring
