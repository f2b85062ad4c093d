"""Files that nobody but their owner may have written: what is loaded from a cache is code, or is believed.

As sshd does with its keys: each file, and each folder on the way to it, belongs to this user or to root, and others cannot write it. A
folder above in which everybody may create files and nobody may remove another's, as ``/tmp``, is no danger, nor is a group that is this
user's alone. Windows gives each user a folder of their own, and nothing is asked there.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

from accelkit.errors import NotPrivateError

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder(path: str | os.PathLike[str]) -> Path:
    """A folder that only this user may write. It is made, with those above it, for this user alone (mode 0700), if it is not there.

    Raises:
        NotPrivateError: If somebody else could change what is in it.
        OSError: If it cannot be made.
    """
    folder = Path(os.path.abspath(path))
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    return folder


def check_private(path: str | os.PathLike[str]) -> None:
    """Make sure that nobody but this user and root could have written a file or folder.

    Raises:
        NotPrivateError: If somebody else could.
        OSError: If it is not there.
    """
    if os.name != "posix":
        return
    named, real = Path(os.path.abspath(path)), Path(path).resolve(strict=True)
    for one in dict.fromkeys((named, real)):
        _check(one, is_above=False)
    for folder in dict.fromkeys((named.parent, real.parent)):
        _check_way(folder)


@functools.cache
def _check_way(folder: Path) -> None:
    """A way that was private stays so: nobody else can change it."""
    for one in (folder, *folder.parents):
        _check(one, is_above=True)


def _check(path: Path, *, is_above: bool) -> None:
    status = path.lstat()
    trusted = {0, os.geteuid()} | (_outside_this_namespace() if is_above else set())
    if status.st_uid not in trusted:
        raise _not_private(path, f"it belongs to {_user_name(status.st_uid)}", f"chown {_user_name(os.geteuid())}")
    writers = status.st_mode & _OTHERS_MAY_WRITE
    if stat.S_ISLNK(status.st_mode) or not writers:
        return
    if is_above and status.st_mode & stat.S_ISVTX:
        return
    if writers == stat.S_IWGRP and (status.st_gid == 0 or _is_own_group(status.st_gid)):
        return
    who = "everybody" if writers & stat.S_IWOTH else f"the group {_group_name(status.st_gid)}"
    raise _not_private(path, f"{who} may write it (mode {stat.S_IMODE(status.st_mode):04o})", "chmod go-w")


def _not_private(path: Path, why: str, command: str) -> NotPrivateError:
    return NotPrivateError(
        f"{path} is not yours alone", why=why, hint=f"{command} {path}, after a look at what is in it; or choose another folder"
    )


@functools.cache
def _outside_this_namespace() -> set[int]:
    """The user id that stands for everybody whom this user namespace does not know, as the owner of ``/home`` in a rootless container."""
    try:
        is_whole = Path("/proc/self/uid_map").read_text("ascii").split() == ["0", "0", "4294967295"]
        return set() if is_whole else {int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))}
    except (OSError, ValueError):
        return set()


@functools.cache
def _is_own_group(gid: int) -> bool:
    """Whether the group is this user's private one: of the user's name, and without other members."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
