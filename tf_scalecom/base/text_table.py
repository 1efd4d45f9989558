"""Rows of text in columns."""

from collections.abc import Sequence


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    total: Sequence[str] | None = None,
    left: int = 1,
) -> str:
    """Rows under a header, one a line; a total, if there is one, between rules below.

    Args:
        header: names of the columns.
        rows: as many cells each.
        total: a last row.
        left: this many columns at the left are aligned there, the others at the right.
    """
    every = [header, *rows, *([] if total is None else [total])]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        for cells in every
    ]
    if total is not None:
        rule = "-" * len(lines[0])
        lines[1:1] = [rule]
        lines[-1:-1] = [rule]
    return "\n".join(lines)
