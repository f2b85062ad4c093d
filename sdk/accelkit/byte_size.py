"""Amounts of memory as text."""

from __future__ import annotations


def as_text(num_bytes: float) -> str:
    """Return a number of bytes as text, in the largest binary unit that does not exceed it, such as ``1.5 MiB`` or ``300 B``."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} B"
