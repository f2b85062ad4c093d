"""Files that are whole, on disk, and known by their checksum."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

_CHUNK = 1 << 22


def checksum(path: Path) -> dict[str, int]:
    """Size in bytes and CRC-32: against damage, not against forgery."""
    crc = size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32": crc}


def write_durably(path: Path, text: str) -> None:
    """A file of this text, on disk when this returns. Its folder's entry is not: ``flush_folder``."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Make the folder's entries durable; Windows has no such thing."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_durably(path: Path, text: str) -> None:
    """Replace a small file: at any moment it is the old one or the new one."""
    temporary = path.with_name(f"{path.name}.tmp")
    write_durably(temporary, text)
    os.replace(temporary, path)
    flush_folder(path.parent)
