"""Manage the folder of steps: list steps, find the latest step, lock steps that are in use, and remove old steps.

A step is one checkpoint: a folder ``step-N`` with a manifest. The file LATEST, next to the steps, holds the name of the step that was
saved last.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelkit.atomic_file import flush_folder
from accelkit.errors import CheckpointError
from accelkit.regular_file import is_regular, open_regular, read_regular

MANIFEST, LATEST = "manifest.json", "LATEST"
_STEP = re.compile(r"step-(0|[1-9][0-9]*)")
_LATEST = re.compile(r"(?P<name>step-(0|[1-9][0-9]*))( (?P<crc32>[0-9a-f]{8}))?")
_LEFTOVER = re.compile(r"step-(0|[1-9][0-9]*)\.tmp")
_MAX_LATEST_BYTES = 100
_CREATE = "create a checkpoint with rt.save_state(path)"

_fcntl: Any
try:
    import fcntl as _fcntl
except ImportError:  # on Windows, no lock is needed, because a folder with open files cannot be removed
    _fcntl = None


def numbers(root: Path) -> list[int]:
    """Return the numbers of the steps that are stored in the folder ``root``, in no particular order."""
    return [int(match[1]) for entry in root.iterdir() if entry.is_dir() and (match := _STEP.fullmatch(entry.name))]


def find(path: Path) -> Path:
    """Return ``path`` if it is a step. Otherwise, return the step that is named in the file ``path/LATEST``.

    If LATEST is missing or damaged, or if it names a step that does not exist, return the step with the highest number.

    Raises:
        CheckpointError: If ``path`` does not exist, is a file, or is a folder that neither is a step nor contains one.
        OSError: If ``path`` cannot be read.
    """
    step = path if (path / MANIFEST).exists() else newest_in(path)
    if step is not None:
        return step
    if not path.exists():
        raise CheckpointError(f"the checkpoint {path} does not exist", hint=_CREATE)
    raise CheckpointError(
        f"there is no checkpoint in {path}", why=f"the folder contains neither {MANIFEST} nor step-N folders", hint=_CREATE
    )


def newest_in(root: Path, *, other_than: Path | None = None) -> Path | None:
    """Return the step in the folder ``root`` that ``find`` would return if the step ``other_than`` did not exist, or None.

    Raises:
        CheckpointError: If ``root`` is a file, or if LATEST exists but there is no step at all.
        OSError: If ``root`` cannot be read.
    """
    if not root.exists():
        return None
    if not root.is_dir():
        raise CheckpointError(f"{root} is not a checkpoint of accelkit", why="it is a file, and a checkpoint is a folder", hint=_CREATE)
    with contextlib.suppress(OSError):
        name = _named(read_regular(root / LATEST, _MAX_LATEST_BYTES).decode("utf-8", "replace"))
        if name is not None and (root / name).is_dir() and root / name != other_than:
            return root / name
    steps = numbers(root)
    if not steps and (root / LATEST).exists():
        raise CheckpointError(
            f"the checkpoints in {root} are gone",
            why=f"the folder contains the file {LATEST}, which save_state writes, but no step-N folder",
            hint=f"restore the folders, or remove {root / LATEST} to begin anew",
        )
    others = [number for number in steps if root / f"step-{number}" != other_than]
    return root / f"step-{max(others)}" if others else None


def latest(step: Path) -> str:
    """Return the text to write to the file LATEST so that it names this step.

    The text contains the step's name and, to detect damage, the CRC-32 of the name.
    """
    return f"{step.name} {zlib.crc32(step.name.encode()):08x}\n"


def _named(text: str) -> str | None:
    """Return the name of the step from ``text``, the content of the file LATEST. Return None if the content is damaged.

    Content without a checksum is accepted, because the oldest formats have none.
    """
    match = _LATEST.fullmatch(text.strip())
    return match["name"] if match and match["crc32"] in (None, f"{zlib.crc32(match['name'].encode()):08x}") else None


def remove_leftovers(root: Path) -> None:
    """Remove everything named ``step-N.tmp`` from ``root``. Such entries are left behind if a save is killed.

    If an entry is a symbolic link, only the link is removed.
    """
    for entry in root.iterdir():
        if _LEFTOVER.fullmatch(entry.name):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def check_same_folder(own: Path, main: Path, rank: int) -> None:
    """Check that this process was given the same folder as rank 0. Called when this process cannot see a file or folder that rank 0 can
    see.

    The check cannot come earlier, because machines may see one folder under different paths.

    Args:
        own: The folder that this process was given.
        main: The absolute path of the folder that rank 0 was given.
        rank: The rank of this process.

    Raises:
        CheckpointError: If the paths differ.
    """
    if own.absolute() != main:
        raise CheckpointError(
            "the processes were given different folders for one checkpoint",
            why=f"rank 0 was given {main}, and rank {rank} was given {own.absolute()}, where the files of rank 0 are missing",
            hint="give every process the same folder; a checkpoint contains the state of all processes",
        )


def has_any(path: Path) -> bool:
    """Return whether ``path`` is a step or contains a step (see ``find``).

    Raises:
        CheckpointError: If ``path`` is a file, or a folder whose steps were removed although LATEST still names one.
        OSError: If ``path`` cannot be read.
    """
    return (path / MANIFEST).exists() or newest_in(path) is not None


@contextlib.contextmanager
def in_use(step: Path) -> Iterator[None]:
    """Hold a shared lock on a step's manifest inside the ``with`` block, so that ``keep_last`` does not remove the step.

    No lock is held on Windows, or if the manifest cannot be opened or locked, for example because the step no longer exists.
    """
    with contextlib.ExitStack() as stack:
        if _fcntl is not None:
            with contextlib.suppress(OSError):  # the manifest is missing or damaged; its reader will report that
                file = stack.enter_context(open(open_regular(step / MANIFEST), "rb"))
                _fcntl.flock(file, _fcntl.LOCK_SH)
        yield


def keep_last(root: Path, newest: Path, count: int) -> None:
    """Remove old steps. Keep ``newest``, the ``count - 1`` other steps with the highest numbers, and all steps in use.

    The steps with the lowest numbers are removed first. See ``in_use`` for the steps in use.

    A step that cannot be removed causes only a warning, because ``newest`` has already been saved.
    """
    others = sorted((number for number in numbers(root) if root / f"step-{number}" != newest), reverse=True)
    for number in reversed(others[count - 1 :]):
        try:
            _remove(root / f"step-{number}")
        except OSError as error:
            warnings.warn(f"the old checkpoint {root / f'step-{number}'} could not be removed: {error}", stacklevel=2)


def _remove(step: Path) -> None:
    """Remove a step, unless it is in use (see ``in_use``). If the step is a symbolic link, only the link is removed.

    The step is renamed before it is removed, so that a folder named step-N is always complete. If the process is killed in between, the
    next save removes the leftover.
    """
    if step.is_symlink():
        step.unlink()
        return
    renamed = step.with_name(f"{step.name}.tmp")
    with contextlib.ExitStack() as stack:
        if _fcntl is not None and is_regular(step / MANIFEST):
            file = stack.enter_context(open(open_regular(step / MANIFEST), "rb"))
            try:
                _fcntl.flock(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            except BlockingIOError:
                return
        os.rename(step, renamed)
        flush_folder(step.parent)
    shutil.rmtree(renamed)
