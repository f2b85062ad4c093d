"""Plain-text tables, and the numbers in them."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, has_numbers: bool = False, widest: int | None = None) -> list[str]:
    """Return one line for each row, with the cells of each column aligned.

    Args:
        rows: The rows, including the row with the headings. All rows have the same number of cells.
        has_numbers: Whether all columns except the first contain numbers, which are then aligned on the right.
        widest: The largest width of a column in characters. A longer cell shifts the rest of its own row. None means no limit.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if widest is not None:
        widths = [min(width, widest) for width in widths]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if has_numbers and index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(row) for row in rows]


def number(value: float) -> str:
    """Return a value as text: as a whole number if its magnitude is at least 999.5, otherwise with at most three significant digits."""
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
