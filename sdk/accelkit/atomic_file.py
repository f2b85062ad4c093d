"""Replace a file in one step: whoever reads it sees the old one or the new one, also after a kill or a power failure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_file(path: Path, *, writer: str = "", is_durable: bool = True, mode: int = 0o666) -> Iterator[Path]:
    """Write to the temporary path that this gives; it takes the place of ``path`` when the block ends without an error.

    Args:
        path: In a folder that exists.
        writer: Tells apart those that may write the same path at the same time.
        is_durable: Flush the file and its folder's entry to disk first. A cache need not.
        mode: Who may read and write it, less what the umask takes away.

    Raises:
        OSError: If the disk does not take it. ``path`` is as it was, and the temporary file is removed.
    """
    temporary = path.with_name(f"{path.name}.{writer}.tmp" if writer else f"{path.name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()  # what a kill left, or a link that leads elsewhere
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


def flush_file(path: Path) -> None:
    """Make a file's content durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Make a folder's entries durable; Windows has no such thing."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
