"""Which files and folders count as this user's alone: every folder and every link on the way matters."""

from __future__ import annotations

import os
import struct
import sys

import pytest

import accelkit
from accelkit import private_files

posix = pytest.mark.skipif(os.name != "posix", reason="files have no owner and mode of this kind")
as_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def real(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    path = tmp_path / "real" / "file"
    path.write_text("mine")
    path.chmod(0o600)
    return path


@posix
def test_a_link_in_a_folder_of_everybody_that_another_link_leads_to(real, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to(real.parent)
    (tmp_path / "cache").symlink_to(shared / "link")
    accelkit.check_private(tmp_path / "cache" / "file")
    private_files._check_way.cache_clear()
    shared.chmod(0o777)
    with pytest.raises(accelkit.UntrustedFileError, match=f"chmod go-w {shared}"):
        accelkit.check_private(tmp_path / "cache" / "file")


@posix
def test_links_in_a_circle(tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="symbolic links"):
        accelkit.check_private(tmp_path / "one" / "file")


@posix
def test_relative_links_and_names_with_dots(real, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to("real/../real")
    monkeypatch.chdir(tmp_path)
    accelkit.check_private("link/file")
    accelkit.check_private("real/../link/../real")


def test_a_file_is_no_private_folder(real):
    with pytest.raises(NotADirectoryError, match="file"):
        accelkit.private_folder(real)


@as_root
def test_a_file_of_roots_group(real):
    real.chmod(0o664)
    os.chown(real, 65533, 0)
    with pytest.raises(accelkit.UntrustedFileError, match="its owner is"):
        accelkit.check_private(real)
    os.chown(real, 0, 65533)
    with pytest.raises(accelkit.UntrustedFileError, match="group 65533"):
        accelkit.check_private(real)


@pytest.mark.skipif(sys.platform != "linux", reason="access lists are extended attributes on Linux")
def test_an_access_list_that_lets_somebody_write(real, monkeypatch):
    entries = [(1, 6, -1), (2, 6, 65534), (4, 0, -1), (16, 6, -1), (32, 0, -1)]  # owner, user 65534, group, mask, others
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(real, "system.posix_acl_access", packed)
    except OSError as error:
        pytest.skip(f"this file system has no access lists: {error}")
    with pytest.raises(accelkit.UntrustedFileError, match="can write to it"):
        accelkit.check_private(real)
