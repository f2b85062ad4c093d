"""Write files durably, with checksums, and read parts of files."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from zlib_ng import zlib_ng

from accelkit.regular_file import open_regular

Result = TypeVar("Result")

_CHUNK = 1 << 20
BLOCK = 1 << 24  # part of the checkpoint format
MOST_THREADS = 4  # more threads would not be faster, because memory bandwidth is the limit
_WORTH_A_THREAD = 1 << 16
_WORTH_A_FLUSH = 1 << 26


def checksum(path: Path, is_wanted: Callable[[], bool] = lambda: True) -> dict[str, int]:
    """Return a file's size in bytes (``bytes``) and its CRC-32 (``crc32``), which detects damage but not forgery.

    Once ``is_wanted`` returns False, reading stops, and the result covers only the part that was read.

    Raises:
        OSError: If ``path`` is not a regular file, or cannot be read.
    """
    return combined(block_checksums(path, is_wanted))


def combined(blocks: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Return a file's size (``bytes``) and its CRC-32 (``crc32``), given the CRC-32 and the size of each of its blocks, in order."""
    crc = 0
    for block, length in blocks:
        crc = zlib_ng.crc32_combine(crc, block, length)
    return {"bytes": sum(length for _, length in blocks), "crc32": crc}


def block_checksums(path: Path, is_wanted: Callable[[], bool] = lambda: True) -> list[tuple[int, int]]:
    """Return the CRC-32 and the size in bytes of each block of a file, in order. Several threads read the blocks.

    Once ``is_wanted`` returns False, reading stops, and the results cover only the parts of the blocks that were read.

    Raises:
        OSError: If ``path`` is not a regular file, or cannot be read.
    """
    with open(open_regular(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
    starts = range(0, size, BLOCK)
    num_threads = min(len(starts), os.cpu_count() or 1, MOST_THREADS)
    if num_threads < 2:
        return [_block_checksum(path, start, is_wanted) for start in starts]
    with ThreadPoolExecutor(num_threads, thread_name_prefix="accelkit_checkpoint") as pool:
        return list(pool.map(lambda start: _block_checksum(path, start, is_wanted), starts))


def _block_checksum(path: Path, start: int, is_wanted: Callable[[], bool]) -> tuple[int, int]:
    """Return the CRC-32 and the size in bytes of the block at the offset ``start`` of a file."""
    with open(open_regular(path), "rb", buffering=0) as file:
        file.seek(start)
        return _sum(lambda buffer, done: file.readinto(buffer) if is_wanted() else 0)


def block_checksum(descriptor: int, start: int) -> tuple[int, int]:
    """Return the CRC-32 and the size in bytes of the block at the offset ``start`` of an open file. Safe to call from several threads.

    Raises:
        OSError: If the file cannot be read.
    """
    return _sum(lambda buffer, done: os.preadv(descriptor, [buffer], start + done))


def _sum(read_into: Callable[[memoryview, int], int]) -> tuple[int, int]:
    """Return the CRC-32 and the size in bytes of a block.

    Args:
        read_into: A function that reads the next bytes of the block into a buffer, and returns the number of bytes that it read. Its
            arguments are the buffer and the offset of these bytes in the block.
    """
    crc = done = 0
    buffer = memoryview(bytearray(_CHUNK))
    while done < BLOCK and (count := read_into(buffer[: BLOCK - done], done)):
        crc, done = zlib_ng.crc32(buffer[:count], crc), done + count
    return crc, done


class ChecksummedFile(io.FileIO):
    """A file that is written sequentially. If the file exists, it is overwritten.

    The checksum of each block is computed from the data that is passed to ``write``, in parallel with the write if the data is large.
    Data is flushed to disk in the background while more is being written, so that the caller's final flush has little to do.
    """

    def __init__(self, path: Path) -> None:
        self._blocks: list[tuple[int, int]] = []
        self._num_unflushed = 0
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="accelkit_checkpoint")
        self._flushing: Future[None] | None = None
        super().__init__(path, "w")

    def write(self, data: Any) -> int:
        """Write all of ``data`` (bytes or a contiguous buffer) and return its size in bytes.

        Raises:
            OSError: If the write fails, or if flushing earlier data to disk has failed.
        """
        view = memoryview(data).cast("B")
        summing = self._begin(self._add, view) if len(view) >= _WORTH_A_THREAD else None
        try:
            left = view
            while left:
                left = left[super().write(left) :]
        finally:  # the caller may reuse the buffer as soon as this method returns
            if summing:
                summing.result()
            else:
                self._add(view)
        self._num_unflushed += len(view)
        if self._num_unflushed >= _WORTH_A_FLUSH and (self._flushing is None or self._flushing.done()):
            self._check_flushed()
            self._flushing, self._num_unflushed = self._begin(os.fsync, self.fileno()), 0
        return len(view)

    def checksum(self) -> dict[str, int]:
        """Return the size and the CRC-32 of the data passed to ``write``, as the function ``checksum`` does for a file."""
        return combined(self._blocks)

    def block_checksums(self) -> list[int]:
        """Return the CRC-32 of each block of the data."""
        return [crc for crc, _ in self._blocks]

    def _add(self, view: memoryview) -> None:
        while view:
            if not self._blocks or self._blocks[-1][1] == BLOCK:
                self._blocks.append((0, 0))
            crc, length = self._blocks[-1]
            piece, view = view[: BLOCK - length], view[BLOCK - length :]
            self._blocks[-1] = zlib_ng.crc32(piece, crc), length + len(piece)

    def close(self) -> None:
        """Close the file. This writes nothing, because ``write`` passes its data to the operating system immediately.

        Raises:
            OSError: If a flush to disk that ``write`` started has failed. The operating system reports the failure only once, so a later
                flush of the same data may succeed although the data is not on disk.
        """
        self._pool.shutdown()
        super().close()
        self._check_flushed()

    def _check_flushed(self) -> None:
        if self._flushing is not None:
            self._flushing.result()

    def _begin(self, call: Callable[..., Result], *arguments: Any) -> Future[Result] | None:
        with contextlib.suppress(RuntimeError):  # Python is shutting down and starts no more threads
            return self._pool.submit(call, *arguments)
        return None


def disk_error(error: BaseException | None) -> OSError | None:
    """Return ``error`` if it is an OSError, else the OSError that led to it. Return None if there is no OSError.

    When a write raises an OSError, torch closes its archive, and closing raises a second error. The OSError is then found only in the chain
    of exceptions that led to the second error.

    Some exceptions in the chain are not explicit causes. They were merely being handled when the next exception was raised
    (``__context__``). Such an exception counts only if it has one of the types that a write to an open file raises. A FileNotFoundError,
    for example, does not count. It may be an error that a strategy plugin expected and handled while saving its files, before the save
    failed for another reason.
    """
    is_cause = True
    while error is not None:
        if isinstance(error, OSError) and (is_cause or type(error) in (OSError, TimeoutError)):
            return error
        is_cause = error.__cause__ is not None
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


class FilePart(io.RawIOBase):
    """Part of an open, unbuffered file: ``size`` bytes from the offset ``start``. Closing the part does not close the file."""

    def __init__(self, file: io.FileIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._position = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(self._start + self._position)
        count = self._file.readinto(view[: max(0, self._size - self._position)]) or 0
        self._position += count
        return count


def write_durably(path: Path, text: str) -> None:
    """Write a text file and flush it to disk. Its directory entry is not flushed; see ``accelkit.atomic_file.flush_folder``."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
