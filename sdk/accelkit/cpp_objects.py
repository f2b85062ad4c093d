"""The object files of a C++ library: which sources are compiled together, and what is kept between builds."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from accelkit.errors import UntrustedFileError
from accelkit.private_files import check_private


@dataclasses.dataclass(frozen=True, slots=True)
class CompilationUnit:
    """The sources that one run of the compiler turns into one object file."""

    sources: tuple[Path, ...]

    @property
    def name(self) -> str:
        return "+".join(path.stem for path in self.sources)

    @property
    def arguments(self) -> list[str]:
        """The arguments that pass the sources to the compiler: ``-include`` for each source but the last, and ``-c`` for the last."""
        *before, last = map(str, self.sources)
        return [*(word for path in before for word in ("-include", path)), "-c", last]

    def digest(self, surroundings: bytes) -> str:
        """Return a hexadecimal digest of the sources and of ``surroundings``.

        ``surroundings`` is itself a digest, of the compilation's other inputs, such as flags.
        """
        digest = hashlib.sha256(surroundings)
        for path in self.sources:
            digest.update(path.read_bytes())
        return digest.hexdigest()


def compilation_units(folder: Path, exclude: Collection[str], unity: Sequence[Sequence[str]]) -> list[CompilationUnit]:
    """Return the units to compile, the largest first. Units are compiled in parallel, so a large unit should not be started last.

    Args:
        folder: The folder with the ``.cpp`` files.
        exclude: Names of files that are not compiled.
        unity: Groups of names of files. The files of a group are compiled as one file.
    """
    left = {path.name: path for path in sorted(folder.glob("*.cpp")) if path.name not in exclude}
    groups = [tuple(left.pop(name) for name in group if name in left) for group in unity]
    units = [CompilationUnit(group) for group in (*groups, *((path,) for path in left.values())) if group]
    return sorted(units, key=lambda unit: -sum(path.stat().st_size for path in unit.sources))


def source_files(folder: Path) -> list[Path]:
    """Return the sorted paths of all files in the source folder and its subfolders. Hidden files and folders are left out."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "/." not in f"/{path.relative_to(folder).as_posix()}")


def update_digest(digest: hashlib._Hash, folder: Path, files: Iterable[Path]) -> None:
    """Add the contents of ``files`` and their paths relative to ``folder`` to the digest, in place."""
    for path in files:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())


def reuse(kept: Path, target: Path) -> bool:
    """Copy the object file ``kept``, which an earlier build has stored, to ``target``. Return whether the file was copied.

    ``kept`` is not copied if it does not exist, or if anybody but this user and root could have written it.
    """
    try:
        check_private(kept)
        shutil.copyfile(kept, target)
    except (UntrustedFileError, OSError):  # it does not exist, or another process has just removed it
        return False
    return True


def keep(target: Path, kept: Path) -> None:
    """Store the object file ``target`` as ``kept``, for later builds.

    This call stores nothing if another process stores the same file at the same time, or if the file system has no hard links.
    """
    os.chmod(target, 0o600)
    with contextlib.suppress(OSError):
        kept.unlink(missing_ok=True)
        os.link(target, kept)
