"""Read and write ``manifest.json``, which states the contents and format of a checkpoint and the checksum of every file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelkit.errors import CheckpointError
from accelkit.regular_file import is_regular, read_regular
from accelkit.runtime.checkpoints import dcp_metadata, engine_files, index, step_dirs
from accelkit.runtime.checkpoints.atomic_io import BLOCK, block_checksums, combined, write_durably
from accelkit.runtime.checkpoints.step_dirs import MANIFEST

FORMAT = "accelkit.checkpoint/3"
FORMAT_WITH_ENGINES = "accelkit.checkpoint/4"  # an older accelkit would report the files of engines as damage
DATA = "data"
CHECKSUM = "manifest.crc32"
_FIRST = "accelkit.checkpoint/1"  # written by a single process, whose random state was saved like any other part
_SECOND = "accelkit.checkpoint/2"  # the manifest had no checksum
_MAX_CHECKSUM_BYTES = 100
_SHOWN = 3
_ENGINE = re.compile(r"engine_(0|[1-9][0-9]*)")
_LARGEST = 200_000_000  # size limit of a manifest in bytes; a million optimizer states need half of this


def write_manifest(step: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, and write its checksum to a separate file. Both files are flushed to disk; their directory entries are not."""
    text = json.dumps(manifest)
    write_durably(step / MANIFEST, text)
    write_durably(step / CHECKSUM, _checksum_line(text.encode()))


def _checksum_line(content: bytes) -> str:
    return f"{len(content)} {zlib.crc32(content):08x}\n"


def read_manifest(step: Path) -> dict[str, Any]:
    """Return the manifest of a step, converted to the newest format.

    Raises:
        CheckpointError: If the manifest cannot be read, is not accelkit's, was written by a newer accelkit, does not match its checksum, or
            lists an invalid file or engine.
    """
    try:
        content = read_regular(step / MANIFEST, _LARGEST)
        manifest: dict[str, Any] = json.loads(content)
        found = str(manifest["format"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(step, MANIFEST, f"it cannot be read ({type(error).__name__}: {error})") from error
    name, _, _ = found.partition("/")
    if name != FORMAT.partition("/")[0]:
        raise CheckpointError(f"{step} is not a checkpoint of accelkit", why=f"its format is {found!r}, not {FORMAT!r}")
    if found not in (FORMAT_WITH_ENGINES, FORMAT, _FIRST, _SECOND):
        versions = manifest.get("versions")
        written_by = versions.get("accelkit", "another version") if isinstance(versions, dict) else "another version"
        why = f"its format is {found}, but this version reads {FORMAT_WITH_ENGINES}"
        raise CheckpointError(
            f"{step} was written by accelkit {written_by} and cannot be read", why=why, hint="install a newer version of accelkit"
        )
    _check_manifest(step, content, is_needed=found not in (_FIRST, _SECOND))
    _check_names(step, manifest.get("files"), manifest.setdefault("engines", {}))
    classes = manifest.setdefault("classes", {})  # older versions did not record them
    if not isinstance(classes, dict) or not all(isinstance(name, str) for name in classes.values()):
        raise damaged(step, MANIFEST, f"it lists the classes {classes!r:.80}, which are not names of classes")
    if found == _FIRST:
        if not isinstance(manifest.get("objects"), list):
            raise damaged(step, MANIFEST, "it has no list of objects")
        was_of_one = [part for part in manifest["objects"] if part == "random_state"]
        return manifest | {"world_size": 1, "per_rank": [], "was_of_one": was_of_one}
    return manifest | {"was_of_one": []}


def _check_manifest(step: Path, content: bytes, *, is_needed: bool) -> None:
    """Compare the manifest with its checksum. If ``is_needed`` is False, the checksum may be missing, as in older formats."""
    if not is_needed and not os.path.lexists(step / CHECKSUM):
        return
    try:
        written = read_regular(step / CHECKSUM, _MAX_CHECKSUM_BYTES)
    except OSError as error:
        raise damaged(step, CHECKSUM, f"it cannot be read ({type(error).__name__}: {error})") from error
    if written != _checksum_line(content).encode():
        raise damaged(step, MANIFEST, f"its checksum differs from the one in {CHECKSUM}")


def _check_names(step: Path, files: Any, engines: Any) -> None:
    """Check that each file in the manifest is in the step's folder ``data`` or in the folder of an engine, and has a size and a checksum.

    Without this check, a forged manifest could make accelkit read any file.

    Raises:
        CheckpointError: If the manifest has no list of files, or an entry is invalid.
    """
    if not isinstance(files, dict):
        raise damaged(step, MANIFEST, "it has no list of files")
    if not isinstance(engines, dict) or not all(_ENGINE.fullmatch(name) and isinstance(engines[name], str) for name in engines):
        raise damaged(step, MANIFEST, f"it lists the engines {engines!r:.80}, which are not names of engines")
    for name, expected in files.items():
        folder, slash, own = name.partition("/")
        is_data = (folder, slash) == (DATA, "/") and own not in ("", ".", "..") and not set(own) & {"/", "\\", "\0"}
        if not is_data and not engine_files.is_valid_name(name, engines):
            raise damaged(step, MANIFEST, f"it lists {name!r}, which is not the name of a file in {DATA}")
        if not isinstance(expected, dict) or set(expected) != {"bytes", "crc32"}:
            raise damaged(step, MANIFEST, f"it lacks the size or the checksum of {name}")


def check_sizes(step: Path, files: Mapping[str, Any]) -> None:
    """Check that the files of a step exist and have the sizes that the manifest states. The files are not read.

    Args:
        step: The folder of the step.
        files: Entries of ``files`` in the manifest, by the path of the file inside ``step``.

    Raises:
        CheckpointError: For the first folder that is a symbolic link. If there is none, for the first file that is missing, is not a
            regular file, or has a different size.
    """
    for folder in sorted({parent for name in [f"{DATA}/", *files] for parent in Path(name + "x").parents} - {Path()}):
        if (step / folder).is_symlink():
            raise damaged(step, folder.as_posix(), "it is a symbolic link")
    for name, expected in files.items():
        path = step / name
        if not os.path.lexists(path):
            raise damaged(step, name, "it is missing")
        if not is_regular(path):
            raise damaged(step, name, "it is not a regular file")
        if path.stat().st_size != expected["bytes"]:
            raise damaged(step, name, f"it has {path.stat().st_size} bytes instead of {expected['bytes']}")


def check_contents(step: Path, manifest: Mapping[str, Any], names: Iterable[str], is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Compare files with their checksums in the manifest. Once ``is_wanted`` returns False, stop reading and report no damage.

    Raises:
        CheckpointError: For the first file whose contents do not match its checksum. If the manifest has the checksums of the file's
            blocks, the error names tensors in the first damaged block.
        OSError: If a file cannot be read.
    """
    for name in names:
        found = block_checksums(step / name, is_wanted)
        if combined(found) != manifest["files"][name] and is_wanted():
            raise damaged(step, name, f"its checksum is wrong{_tensors_of_damage(step, manifest, name, [crc for crc, _ in found])}")


def _tensors_of_damage(step: Path, manifest: Mapping[str, Any], name: str, found: list[int]) -> str:
    """Return the names of the tensors in the first damaged block, as the end of a sentence, or "" if they are not known."""
    folder, _, own = name.partition("/")
    if folder != DATA:
        return ""
    others = data_files(manifest) - {dcp_metadata.NAME}
    with contextlib.suppress(Exception):  # the index may be the damaged file; the checksum is wrong anyway
        expected = manifest["blocks"][name]
        number = next(place for place, crc in enumerate(found) if crc != expected[place])
        keys = index.keys_in(step / folder, others, own, number * BLOCK, (number + 1) * BLOCK)
        return naming(keys)
    return ""


def data_files(manifest: Mapping[str, Any]) -> set[str]:
    """Return the names of the files that the manifest lists in the folder ``data``, without the prefix ``data/``."""
    return {name.removeprefix(f"{DATA}/") for name in manifest["files"] if name.startswith(f"{DATA}/")}


def naming(keys: Sequence[str]) -> str:
    """Return the end of a sentence that names the first few tensors in a damaged part of a file: `` where it holds a, b, c and 2 more``.

    Args:
        keys: The names of all tensors in the damaged part. If there are none, the result is "".
    """
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f" where it holds {', '.join(keys[:_SHOWN])}{more}" if keys else ""


def damaged(step: Path, name: str, why: str) -> CheckpointError:
    """Return the error for a damaged file of a step.

    The hint of the error names the step that is loaded from the same folder once the damaged step has been removed."""
    other = None
    with contextlib.suppress(OSError, CheckpointError):  # the folder may have been removed while the checkpoint was being verified
        other = step_dirs.newest_in(step.parent, other_than=step)
    hint = "restore the files from a backup, or start a new run; no other checkpoint was found in the folder"
    if other is not None:
        hint = f"remove the folder {step}; rt.resume({str(step.parent)!r}) and rt.load_state({str(step.parent)!r}) then load {other}"
    return CheckpointError(f"the checkpoint {step} is damaged", why=f"{name}: {why}", hint=hint)
