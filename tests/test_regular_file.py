"""Reading of files that others may have created, within a limit."""

from __future__ import annotations

import errno
import os
import sys
import tracemalloc
from pathlib import Path

import pytest

from accelkit.regular_file import read_regular


def test_a_limit_allocates_no_more_than_the_file_needs(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"content")
    tracemalloc.start()
    try:
        assert read_regular(path, max_bytes=1 << 28) == b"content"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(("max_bytes", "fits"), [(6, False), (7, True), (None, True)])
def test_a_file_is_read_whole_or_not_at_all(tmp_path, max_bytes, fits):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    if fits:
        assert read_regular(path, max_bytes) == b"content"
    else:
        with pytest.raises(OSError, match="larger than 6 bytes") as caught:
            read_regular(path, max_bytes)
        assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("has_flag", [True, False])
def test_a_link_is_not_followed(tmp_path, monkeypatch, has_flag):
    """Windows has no O_NOFOLLOW."""
    if not has_flag:
        monkeypatch.delattr(os, "O_NOFOLLOW", raising=False)
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"content")
    link.symlink_to(path)
    assert read_regular(path) == b"content"
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(link)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_file_of_unknown_size_is_read_within_the_limit():
    path = Path("/proc/self/status")
    assert b"VmPeak" in read_regular(path, 1 << 20)
    with pytest.raises(OSError, match="larger than 10 bytes"):
        read_regular(path, 10)
