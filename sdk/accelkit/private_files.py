"""Checks that only this user or root could have written a file. Files from a cache must be checked because they are executed or trusted.

The rules are those of sshd for its keys: each file, and each folder and link on the path to it, must belong to this user or to root, and
other users must not be able to write to it. There are three exceptions. Files and folders may be writable by this user's private group.
Parent folders may also be writable by root's group, or by everybody if users cannot remove each other's files, as in ``/tmp``. In a
rootless container, parent folders may also belong to users outside the container. On Windows, nothing is checked, because each user has
their own folder there.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from pathlib import Path

from accelkit.errors import UntrustedFileError

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ACCESS_LIST = "system.posix_acl_access"
_LONGEST_WAY = 1000


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` as an absolute path, after checking that only this user and root may write to this folder.

    If the folder does not exist, it and its missing parents are created with mode 0700.

    Raises:
        UntrustedFileError: If another user could change the contents of the folder.
        OSError: If the folder cannot be created, or the path is that of a file.
    """
    folder = Path(os.path.abspath(path))
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    check_private(folder)
    return folder


def check_private(path: str | os.PathLike[str]) -> None:
    """Check that only this user and root could have written a file or folder. On Windows, nothing is checked.

    Raises:
        UntrustedFileError: If another user could have written it.
        OSError: If the file or folder does not exist, or its links form a loop.
    """
    if os.name != "posix":
        return
    absolute = Path(os.path.abspath(path))
    if absolute.is_symlink():
        *way, last = _way(absolute)
        for folder_or_link in way:
            _check(folder_or_link, is_above=True)
    else:
        _check_way(absolute.parent)
        last = absolute
    _check(last, is_above=False)


def _way(path: Path) -> list[Path]:
    """Return every folder and link through which the system reaches ``path``, starting at the root. The last item is the final target.

    Raises:
        OSError: If the path does not exist, or its links form a loop.
    """
    here, rest, found = Path(path.anchor), list(path.parts[1:]), [Path(path.anchor)]
    while rest:
        name = rest.pop(0)
        if name == "..":
            here = here.parent
            continue
        found.append(here / name)
        if not stat.S_ISLNK(found[-1].lstat().st_mode):
            here = found[-1]
            continue
        if len(found) > _LONGEST_WAY:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(found[-1]))
        here = Path(target.anchor) if target.is_absolute() else here
        rest = [*(target.parts[1:] if target.is_absolute() else target.parts), *rest]
    if found[-1] != here:  # the last component was ".."
        found.append(here)
    return found


@functools.cache
def _check_way(folder: Path) -> None:
    """Check ``folder`` and each folder and link on the path to it by the rules for parent folders (see the module's docstring).

    Success is cached, because other users cannot change a path that passes the check. Errors are not cached.

    Raises:
        UntrustedFileError: If another user could replace something on the path.
        OSError: If the folder does not exist, or its links form a loop.
    """
    for folder_or_link in _way(folder):
        _check(folder_or_link, is_above=True)


def _check(path: Path, *, is_above: bool) -> None:
    status = path.lstat()
    trusted = {0, os.geteuid()} | (_outside_this_namespace() if is_above else set())
    if status.st_uid not in trusted:
        raise _not_private(path, f"its owner is {_user_name(status.st_uid)}", f"chown {_user_name(os.geteuid())}")
    writers = status.st_mode & _OTHERS_MAY_WRITE
    if stat.S_ISLNK(status.st_mode) or not writers:
        return
    if is_above and status.st_mode & stat.S_ISVTX:
        return
    is_of_roots_group = is_above and status.st_gid == 0 and status.st_uid == 0
    if writers == stat.S_IWGRP and (is_of_roots_group or _is_own_group(status.st_gid)) and not _has_access_list(path):
        return
    others = "every user" if writers & stat.S_IWOTH else f"the group {_group_name(status.st_gid)}"
    raise _not_private(path, f"{others} can write to it (mode {stat.S_IMODE(status.st_mode):04o})", "chmod go-w")


def _has_access_list(path: Path) -> bool:
    """Return whether the path has a POSIX access control list.

    With such a list, the group bits of the mode also cover the users that the list names.
    """
    try:
        return _ACCESS_LIST in os.listxattr(path)
    except (AttributeError, OSError):  # not supported by the operating system or this file system
        return False


def _not_private(path: Path, why: str, command: str) -> UntrustedFileError:
    return UntrustedFileError(
        f"other users can change {path}", why=why, hint=f"inspect its contents, then run {command} {path}; or choose another folder"
    )


@functools.cache
def _outside_this_namespace() -> set[int]:
    """Return a set with the user id that stands for all users outside this user namespace.

    In a rootless container, for example, the owner of folders that belong to root on the host is shown as this id. The set is empty if no
    user is outside the namespace, or if the operating system does not provide this information.
    """
    try:
        is_whole = Path("/proc/self/uid_map").read_text("ascii").split() == ["0", "0", "4294967295"]
        return set() if is_whole else {int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))}
    except (OSError, ValueError):
        return set()


@functools.cache
def _is_own_group(gid: int) -> bool:
    """Return whether the group is this user's private group: it has the user's name, and no members other than the user."""
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
