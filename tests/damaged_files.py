"""Damage to a file, such as a disk or a network may do."""

from __future__ import annotations

from pathlib import Path


def invert_byte(file: Path, place: int) -> None:
    """Invert the bits of one byte, in place. A second call restores the file."""
    with file.open("r+b") as target:
        target.seek(place)
        (byte,) = target.read(1)
        target.seek(place)
        target.write(bytes([byte ^ 255]))
