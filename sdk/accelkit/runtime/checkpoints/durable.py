"""Files that are whole, on disk, and known by their checksum."""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

_CHUNK = 1 << 22
_WORTH_A_THREAD = 1 << 16


def checksum(path: Path) -> dict[str, int]:
    """Size in bytes and CRC-32: against damage, not against forgery."""
    crc = size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32": crc}


class SummedFile(io.FileIO):
    """A new file, written from front to back. Its checksum is that of what was to be written, computed beside the writing."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self._crc = self._size = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="accelkit_checksum")

    def write(self, data: Any) -> int:
        """All of ``data``, bytes or a contiguous buffer; returns its size in bytes."""
        view = memoryview(data).cast("B")
        summing = self._begin_summing(view) if len(view) >= _WORTH_A_THREAD else None
        try:
            left = view
            while left:
                left = left[super().write(left) :]
        finally:  # whoever gave us the buffer may reuse it
            self._crc = summing.result() if summing else zlib.crc32(view, self._crc)
        self._size += len(view)
        return len(view)

    def checksum(self) -> dict[str, int]:
        """As ``checksum`` of a file that holds what was to be written."""
        return {"bytes": self._size, "crc32": self._crc}

    def close(self) -> None:
        """Close the file; nothing was kept back."""
        self._pool.shutdown()
        super().close()

    def _begin_summing(self, view: memoryview) -> Future[int] | None:
        with contextlib.suppress(RuntimeError):  # Python is ending, and starts no thread any more
            return self._pool.submit(zlib.crc32, view, self._crc)
        return None


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
