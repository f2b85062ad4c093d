"""Checkpoints: ``ckpt/step-N/`` with ``manifest.json`` and torch.distributed.checkpoint data; a kill at any moment loses nothing.

Order of writing: everything into ``step-N.tmp``, each file and the folder flushed to disk, the folder renamed to ``step-N``, ``LATEST``
replaced. Whatever exists under the name ``step-N`` is whole; ``.tmp`` is what a kill left, and the next save removes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint.state_dict_loader as dcp_load
import torch.distributed.checkpoint.state_dict_saver as dcp_save
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

import accelkit
from accelkit.errors import CheckpointError
from accelkit.runtime.state_encoding import Encoder, decode

FORMAT = "accelkit.checkpoint/1"
MANIFEST, LATEST, DATA = "manifest.json", "LATEST", "data"
_STEP = re.compile(r"step-(\d+)")
_CHUNK = 1 << 22


def save(root: Path, parts: Mapping[str, Mapping[str, Any]], *, step: int | None = None) -> Path:
    """Write a checkpoint, whole or not at all.

    Args:
        root: The folder that holds the steps; made if it is missing.
        parts: State dicts by name (``model_0``, ``optimizer_0``, ...): tensors on any device, and plain Python values.
        step: Its number; by default one more than the highest there.

    Returns:
        ``root/step-N``, durable on disk.

    Raises:
        CheckpointError: If a value could not be loaded safely again, the step exists, or the disk refuses.
    """
    encoder = Encoder()
    structure = {name: encoder.encode(state, name) for name, state in parts.items()}
    try:
        root.mkdir(parents=True, exist_ok=True)
        number = max(_steps(root), default=-1) + 1 if step is None else step
        final, temporary = root / f"step-{number}", root / f"step-{number}.tmp"
        if final.exists():
            raise CheckpointError(f"the checkpoint {final} exists already", hint="choose another step, or remove it")
        for leftover in root.glob("step-*.tmp"):
            shutil.rmtree(leftover)
        (temporary / DATA).mkdir(parents=True)
        if encoder.tensors:
            # Nothing is copied ahead: that needs streams of the device's module, which not every device has.
            writer = FileSystemWriter(temporary / DATA, single_file_per_rank=True, sync_files=True, per_thread_copy_ahead=0)
            with _single_process():
                dcp_save.save(dict(encoder.tensors), storage_writer=writer, no_dist=True)
        files = {str(path.relative_to(temporary)): _checksum(path) for path in sorted(temporary.rglob("*")) if path.is_file()}
        manifest = {
            "format": FORMAT,
            "step": number,
            "versions": {"accelkit": accelkit.__version__, "torch": torch.__version__},
            "objects": list(parts),
            "files": files,
            "structure": structure,
        }
        _write_durably(temporary / MANIFEST, json.dumps(manifest))
        _flush_folder(temporary / DATA)
        _flush_folder(temporary)
        os.rename(temporary, final)
        _flush_folder(root)
        _write_durably(root / f"{LATEST}.tmp", final.name)
        os.replace(root / f"{LATEST}.tmp", root / LATEST)
        _flush_folder(root)
    except OSError as error:
        raise CheckpointError(
            f"a checkpoint could not be saved under {root}",
            why=f"{type(error).__name__}: {error}",
            hint="check free space and permissions; earlier checkpoints are untouched",
        ) from error
    return final


def load(path: Path) -> dict[str, Any]:
    """The parts of a checkpoint, every byte verified; tensors on the CPU.

    Args:
        path: A step, or the folder that holds the steps (then the one that LATEST names, or the newest).

    Raises:
        CheckpointError: If there is none, it is damaged, or it was written by a newer accelkit. The text names the file.
    """
    step = find(path)
    manifest = _read_manifest(step)
    _verify(step, manifest["files"])
    tensors: dict[str, torch.Tensor] = {}
    if manifest["files"]:
        reader = FileSystemReader(step / DATA)
        described = reader.read_metadata().state_dict_metadata
        tensors = {key: torch.empty(entry.size, dtype=entry.properties.dtype, device="cpu") for key, entry in described.items()}  # type: ignore[union-attr]
        with _single_process():
            dcp_load.load(tensors, storage_reader=reader, no_dist=True)
    return {name: decode(manifest["structure"][name], tensors) for name in manifest["objects"]}


def find(path: Path) -> Path:
    """The step folder that ``path`` means.

    Raises:
        CheckpointError: If there is none.
    """
    hint = "save_state makes one: rt.save_state(path)"
    if (path / MANIFEST).exists():
        return path
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint {path}", why="the folder does not exist", hint=hint)
    if (path / LATEST).exists():
        named = path / (path / LATEST).read_text("utf-8").strip()
        if _STEP.fullmatch(named.name) and named.is_dir():
            return named
    steps = _steps(path)
    if steps:
        return path / f"step-{max(steps)}"
    raise CheckpointError(f"there is no checkpoint in {path}", why=f"it holds neither {MANIFEST} nor step-N folders", hint=hint)


@contextlib.contextmanager
def _single_process() -> Iterator[None]:
    """torch warns that no process group is there, although ``no_dist`` said so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _steps(root: Path) -> list[int]:
    return [int(match[1]) for entry in root.iterdir() if entry.is_dir() and (match := _STEP.fullmatch(entry.name))]


def _read_manifest(step: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((step / MANIFEST).read_text("utf-8"))
        found = str(manifest["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(step, MANIFEST, f"it cannot be read ({type(error).__name__}: {error})") from error
    name, _, _ = found.partition("/")
    if name != FORMAT.partition("/")[0]:
        raise CheckpointError(f"{step} is no accelkit checkpoint", why=f"its format is {found!r}, {FORMAT!r} is expected")
    if found != FORMAT:
        written_by = manifest.get("versions", {}).get("accelkit", "another version")
        why = f"its format is {found}, this accelkit reads {FORMAT}"
        raise CheckpointError(f"{step} was written by accelkit {written_by}", why=why, hint="use a newer accelkit")
    return manifest


def _verify(step: Path, files: Mapping[str, Any]) -> None:
    for name, expected in files.items():
        path = step / name
        if not path.is_file():
            raise _damaged(step, name, "it is missing")
        if path.stat().st_size != expected["bytes"]:
            raise _damaged(step, name, f"it has {path.stat().st_size} bytes, {expected['bytes']} were written")
        if _checksum(path) != expected:
            raise _damaged(step, name, "its checksum is not what was written")


def _damaged(step: Path, name: str, why: str) -> CheckpointError:
    others = [number for number in _steps(step.parent) if step.parent / f"step-{number}" != step]
    hint = f"load {step.parent / f'step-{max(others)}'} instead" if others else "there is no other checkpoint beside it"
    return CheckpointError(f"the checkpoint {step} is damaged", why=f"{name}: {why}", hint=hint)


def _checksum(path: Path) -> dict[str, int]:
    """Size in bytes and CRC-32: against damage, not against forgery."""
    crc = size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32": crc}


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    """Make the folder's entries durable; Windows has no such thing."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
