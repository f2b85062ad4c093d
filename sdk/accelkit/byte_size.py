"""Amounts of memory as text."""

from __future__ import annotations


def as_text(num_bytes: float) -> str:
    """Return ``num_bytes`` as text, such as ``1.5 MiB`` or ``300 B``.

    The unit is the largest of GiB, MiB and KiB that is at most ``num_bytes``. It is B if all three are larger than ``num_bytes``.
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} B"
