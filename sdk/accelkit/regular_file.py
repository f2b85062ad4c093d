"""Safe opening of files that other users may have created. Symbolic links are rejected, and pipes and devices do not block the
caller."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_regular(path: Path) -> int:
    """Open the regular file ``path`` and return a file descriptor for reading it.

    Raises:
        OSError: If ``path`` cannot be opened or is not a regular file. A symbolic link does not count as a regular file.
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
    if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not (hasattr(os, "O_NOFOLLOW") or _is_file_itself(descriptor, path)):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def read_regular(path: Path, max_bytes: int | None = None) -> bytes:
    """Return the content of the regular file ``path``.

    Args:
        path: The file to read.
        max_bytes: The maximum length of the file in bytes, or None for no limit.

    Raises:
        OSError: If ``path`` is not a regular file, or if the file is longer than ``max_bytes`` or cannot be read. A symbolic link does not
            count as a regular file.
    """
    with open(open_regular(path), "rb") as file:
        if max_bytes is None:
            return file.read()
        size = min(os.fstat(file.fileno()).st_size, max_bytes)
        content = file.read(size + 1)  # file.read(max_bytes) would allocate max_bytes even for a short file
        if len(content) > size:  # the file has grown, or the system does not know its size, as for files in /proc
            content += file.read(max_bytes + 1 - len(content))
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes", str(path))
    return content


def is_regular(path: Path) -> bool:
    """Return whether ``path`` is a regular file, and not a symbolic link. False if there is no such file or its type cannot be read."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _is_file_itself(descriptor: int, path: Path) -> bool:
    """Return whether ``path`` is the open file and not a symbolic link to it. This is for systems without O_NOFOLLOW, such as Windows."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", str(path))
