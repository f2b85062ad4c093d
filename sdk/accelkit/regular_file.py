"""Open files that somebody else may have left: a link is not followed, and a pipe or a device does not keep the caller waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_regular(path: Path) -> int:
    """A descriptor for reading ``path``, which is a regular file and no symbolic link.

    Raises:
        OSError: If it is anything else, or cannot be opened.
    """
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def read_regular(path: Path, max_bytes: int | None = None) -> bytes:
    """The content of ``path``, which is a regular file and no symbolic link.

    Args:
        path: The file.
        max_bytes: How much is read at most; None for all.

    Raises:
        OSError: If it is anything else, is longer, or cannot be read.
    """
    with open(open_regular(path), "rb") as file:
        content = file.read(-1 if max_bytes is None else max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is longer than {max_bytes} bytes", str(path))
    return content


def is_regular(path: Path) -> bool:
    """Whether ``path`` is a regular file and no symbolic link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is no regular file", str(path))
