"""Atomic replacement of files. A reader sees either the old file or the new one, even if the writer is killed.

If the replacement is durable, which is the default, this is also true after a power failure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_file(path: Path, *, writer: str = "", is_durable: bool = True, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path to write to. When the block ends without an error, the temporary file replaces ``path``.

    Args:
        path: The file to replace. Its folder must exist.
        writer: A name that distinguishes writers that may write to the same path at the same time.
        is_durable: Whether to flush the file and its entry in the folder to disk. A file in a cache need not be flushed.
        mode: The permissions of the file, before the umask is applied.

    Raises:
        OSError: If the file cannot be written. ``path`` is left unchanged and the temporary file is removed, unless the error occurs
            when the folder is flushed, after the file has been replaced.
    """
    temporary = path.with_name(f"{path.name}.{writer}.tmp" if writer else f"{path.name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()  # it may be left over from a killed process, or be a link to another file
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield temporary
        if is_durable:
            flush_file(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if is_durable:
        flush_folder(path.parent)


def is_replaceable(path: Path) -> bool:
    """Return whether ``path`` is a regular file or does not exist.

    Anything else, such as a device, a pipe or a symbolic link like /dev/stdout, must not be replaced by a file.
    """
    return not path.is_symlink() and (path.is_file() or not path.exists())


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield the path to write to, for an output file that a user has named.

    If ``is_replaceable(path)`` is True, the yielded path is the temporary path of ``atomic_file``. Otherwise, for example for
    /dev/stdout, the yielded path is ``path`` itself.

    Raises:
        OSError: If the file cannot be written.
    """
    with atomic_file(path) if is_replaceable(path) else contextlib.nullcontext(path) as target:
        yield target


def flush_file(path: Path) -> None:
    """Flush the content of a file to disk."""
    with path.open("rb" if os.name == "posix" else "rb+") as file:  # Windows flushes only files that are open for writing
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Flush the directory entries of a folder to disk. Does nothing on Windows, which cannot flush folders."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
