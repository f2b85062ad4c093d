"""``manifest.json``: what a checkpoint holds, in which format, and the checksum of every file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accelkit.errors import CheckpointError
from accelkit.runtime.checkpoints import steps
from accelkit.runtime.checkpoints.durable import checksum
from accelkit.runtime.checkpoints.steps import MANIFEST

FORMAT = "accelkit.checkpoint/2"
DATA = "data"
_FIRST = "accelkit.checkpoint/1"  # of one process; its random state was a part like others


def read_manifest(step: Path) -> dict[str, Any]:
    """The manifest of a step, as the newest format has it.

    Raises:
        CheckpointError: If it cannot be read, is of something else, or was written by a newer accelkit.
    """
    try:
        manifest: dict[str, Any] = json.loads((step / MANIFEST).read_text("utf-8"))
        found = str(manifest["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(step, MANIFEST, f"it cannot be read ({type(error).__name__}: {error})") from error
    name, _, _ = found.partition("/")
    if name != FORMAT.partition("/")[0]:
        raise CheckpointError(f"{step} is no accelkit checkpoint", why=f"its format is {found!r}, {FORMAT!r} is expected")
    if found not in (FORMAT, _FIRST):
        written_by = manifest.get("versions", {}).get("accelkit", "another version")
        why = f"its format is {found}, this accelkit reads {FORMAT}"
        raise CheckpointError(f"{step} was written by accelkit {written_by}", why=why, hint="use a newer accelkit")
    if found == _FIRST:
        was_of_one = [part for part in manifest["objects"] if part == "random_state"]
        return manifest | {"world_size": 1, "per_rank": [], "was_of_one": was_of_one}
    return manifest | {"was_of_one": []}


def check_sizes(step: Path, files: Mapping[str, Any]) -> None:
    """Compare files with what the manifest says of them, as far as the file system knows it.

    Raises:
        CheckpointError: For the first that is missing or has another size.
    """
    for name, expected in files.items():
        path = step / name
        if not path.is_file():
            raise damaged(step, name, "it is missing")
        if path.stat().st_size != expected["bytes"]:
            raise damaged(step, name, f"it has {path.stat().st_size} bytes, {expected['bytes']} were written")


def check_contents(step: Path, files: Mapping[str, Any], is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Compare files with their checksums, until that is wanted no more.

    Raises:
        CheckpointError: For the first that is not what was written.
    """
    for name, expected in files.items():
        if checksum(step / name, is_wanted) != expected and is_wanted():
            raise damaged(step, name, "its checksum is not what was written")


def damaged(step: Path, name: str, why: str) -> CheckpointError:
    """The error for a damaged file of a step; it names the newest of the other steps."""
    others = [number for number in steps.numbers(step.parent) if step.parent / f"step-{number}" != step]
    hint = f"load {step.parent / f'step-{max(others)}'} instead" if others else "there is no other checkpoint beside it"
    return CheckpointError(f"the checkpoint {step} is damaged", why=f"{name}: {why}", hint=hint)
