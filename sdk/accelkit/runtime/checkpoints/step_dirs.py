"""The folder of steps: which there are, which is the latest, which are in use, which may go."""

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

_fcntl: Any
try:
    import fcntl as _fcntl
except ImportError:  # Windows: nothing is locked there, and a folder with open files cannot be removed anyway
    _fcntl = None


def numbers(root: Path) -> list[int]:
    """The steps below ``root``, in no order."""
    return [int(match[1]) for entry in root.iterdir() if entry.is_dir() and (match := _STEP.fullmatch(entry.name))]


def find(path: Path) -> Path:
    """The step folder that ``path`` means: itself, the one that LATEST names, or the newest.

    Raises:
        CheckpointError: If there is none.
    """
    hint = "save_state makes one: rt.save_state(path)"
    if (path / MANIFEST).exists():
        return path
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint {path}", why="the folder does not exist", hint=hint)
    with contextlib.suppress(OSError):
        name = _named(read_regular(path / LATEST, _MAX_LATEST_BYTES).decode("utf-8", "replace"))
        if name is not None and (path / name).is_dir():
            return path / name
    steps = numbers(path)
    if steps:
        return path / f"step-{max(steps)}"
    raise CheckpointError(f"there is no checkpoint in {path}", why=f"it holds neither {MANIFEST} nor step-N folders", hint=hint)


def latest(step: Path) -> str:
    """What the file LATEST holds to name this step: its name and the CRC-32 of that, so that a damaged name is not taken for another."""
    return f"{step.name} {zlib.crc32(step.name.encode()):08x}\n"


def _named(text: str) -> str | None:
    """The step that a file LATEST names; None if it is damaged. The first formats had no checksum there."""
    match = _LATEST.fullmatch(text.strip())
    return match["name"] if match and match["crc32"] in (None, f"{zlib.crc32(match['name'].encode()):08x}") else None


def remove_leftovers(root: Path) -> None:
    """Remove what a kill left. A link or a file of that name is removed itself, and not what it leads to."""
    for entry in root.iterdir():
        if _LEFTOVER.fullmatch(entry.name):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def has_any(path: Path) -> bool:
    """Whether ``find`` finds a step."""
    try:
        find(path)
    except CheckpointError:
        return False
    return True


@contextlib.contextmanager
def in_use(step: Path) -> Iterator[None]:
    """Inside, nobody removes the step to keep the last few: a shared lock on its manifest. It may be gone already."""
    with contextlib.ExitStack() as stack:
        if _fcntl is not None:
            with contextlib.suppress(OSError):  # it is missing, or damaged, as the reader will find
                file = stack.enter_context(open(open_regular(step / MANIFEST), "rb"))
                _fcntl.flock(file, _fcntl.LOCK_SH)
        yield


def keep_last(root: Path, newest: Path, count: int) -> None:
    """Remove steps, the oldest first, until ``count`` are left. ``newest`` stays, and so does a step that somebody loads.

    What cannot be removed is warned about: the save has succeeded.
    """
    others = sorted((number for number in numbers(root) if root / f"step-{number}" != newest), reverse=True)
    for number in others[count - 1 :]:
        try:
            _remove(root / f"step-{number}")
        except OSError as error:
            warnings.warn(f"the old checkpoint {root / f'step-{number}'} could not be removed: {error}", stacklevel=2)


def _remove(step: Path) -> None:
    """Rename, then remove: what is named step-N is whole at any moment. What a kill leaves, the next save removes."""
    if step.is_symlink():
        step.unlink()
        return
    doomed = step.with_name(f"{step.name}.tmp")
    with contextlib.ExitStack() as stack:
        if _fcntl is not None and is_regular(step / MANIFEST):
            file = stack.enter_context(open(open_regular(step / MANIFEST), "rb"))
            try:
                _fcntl.flock(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            except BlockingIOError:
                return
        os.rename(step, doomed)
        flush_folder(step.parent)
    shutil.rmtree(doomed)
