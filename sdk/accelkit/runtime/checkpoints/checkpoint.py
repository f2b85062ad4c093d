"""Save and load checkpoints: ``ckpt/step-N/`` with ``manifest.json`` and torch.distributed.checkpoint data.

A save writes everything into ``step-N.tmp``, flushes each file and the folder to disk, renames the folder to ``step-N`` and replaces
``LATEST``. No saved step is lost, no matter when the process is killed: a folder named ``step-N`` is always complete, and the next save
removes ``.tmp`` folders. Several processes write one checkpoint together, to a file system that all of them can see. Rank 0 creates the
folder, every process writes and flushes its shards and reports their checksums, then rank 0 writes the manifest and renames the folder.
Plain values and plain tensors are taken from rank 0. Rank 0 also writes an index file, which says where in the data files each tensor is
stored. If there are very many shards, each process writes an index file for its own data file instead (see ``shard_layout``).
``engine_files`` describes the files of strategies that save models and optimizers themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import accelkit
from accelkit.atomic_file import atomic_file, flush_folder
from accelkit.errors import CheckpointError
from accelkit.runtime.checkpoints import dcp_metadata, engine_files, shard_layout, step_dirs
from accelkit.runtime.checkpoints.atomic_io import checksum, disk_error
from accelkit.runtime.checkpoints.coordinator import Ranks
from accelkit.runtime.checkpoints.dcp_io import TensorWriter
from accelkit.runtime.checkpoints.engine_files import Engine
from accelkit.runtime.checkpoints.loading import load, load_unverified, load_with_source
from accelkit.runtime.checkpoints.manifest import DATA, FORMAT, FORMAT_WITH_ENGINES, write_manifest
from accelkit.runtime.checkpoints.state_codec import Encoder
from accelkit.runtime.checkpoints.step_dirs import LATEST, find

_FOLDER_OF_THE_JOB = "save to a folder that all machines of the job share, and to which no other program saves at the same time"

__all__ = ["Save", "find", "load", "load_unverified", "load_with_source", "save"]


def save(
    root: Path,
    parts: Mapping[str, Mapping[str, Any]],
    *,
    step: int | None = None,
    per_rank: Mapping[str, Mapping[str, Any]] | None = None,
    keep_last: int | None = None,
    ranks: Ranks | None = None,
) -> Path:
    """Write a checkpoint atomically. All processes of ``ranks`` must call this together.

    Args:
        root: The folder that holds the steps. It is created if it is missing.
        parts: State dicts by name (``model_0``, ``optimizer_0``, ...): tensors on any device, DTensors, and plain Python values. The
            names must be the same on every process, and so must the keys and global shapes of the DTensors. Each process saves its shards
            of the DTensors; rank 0 saves everything else in ``parts``.
        step: The number of the step. The default is one more than the highest existing step, or 0 if there is none.
        per_rank: Parts that each process saves separately.
        keep_last: The number of steps to keep, including the new step. None keeps all steps.
        ranks: The processes that save. The default is this process alone.

    Returns:
        The folder ``root/step-N``. The checkpoint is on disk and survives a loss of power.

    Raises:
        CheckpointError: On every process, if any process fails to write, if any process has a value of a type that cannot be loaded
            safely, or if the step already exists.
    """
    return Save(root, parts, step=step, per_rank=per_rank, keep_last=keep_last, ranks=ranks).finish()


class Save:
    """A save in progress.

    The constructor rejects values that cannot be saved and creates the folder to fill. ``copy_to_host`` makes the save independent of
    later changes by the program. ``finish`` writes the checkpoint and can be called in any thread.

    Args:
        root, parts, step, per_rank, keep_last, ranks: See the docstring of the function ``save``, which also lists the errors.
        engines: The engines to save, by name (``engine_0``).
        classes: The names of the classes of optimizers and schedulers, by the name of the part. The manifest records them.
    """

    def __init__(
        self,
        root: Path,
        parts: Mapping[str, Mapping[str, Any]],
        *,
        step: int | None = None,
        per_rank: Mapping[str, Mapping[str, Any]] | None = None,
        keep_last: int | None = None,
        ranks: Ranks | None = None,
        engines: Mapping[str, Engine] | None = None,
        classes: Mapping[str, str] | None = None,
    ) -> None:
        self._root, self._objects, self._own, self._keep_last = root, list(parts), dict(per_rank or {}), keep_last
        self._engines, self._classes = dict(engines or {}), dict(classes or {})
        self._ranks = ranks or Ranks()
        self._number, self._has_own_index, self._main_root = self._ranks.through_main(
            self._blame,
            lambda: self._encode(parts),
            lambda layouts: [(self._prepare(step), shard_layout.has_large_index(layouts), root.absolute())] * self._ranks.size,
        )
        self.path, self._temporary = root / f"step-{self._number}", root / f"step-{self._number}.tmp"

    def copy_to_host(self) -> None:
        """Copy the tensors in ``parts`` and ``per_rank`` to main memory, so that the program may change the originals before ``finish``.

        Raises:
            CheckpointError: On every process, if copying fails on any process, for example because it runs out of memory.
        """
        self._ranks.each(self._blame, self._writer.copy_to_host)

    def finish(self) -> Path:
        """Write the files, flush them to disk, rename the folder to ``root/step-N``, and return this path."""
        if self._has_own_index:
            plan = self._ranks.each(self._blame, lambda: self._writer.plan_alone(self._plan(), self._ranks.rank))
        else:
            plan = self._ranks.through_main(self._blame, self._plan, self._writer.plan_all)
        of_engines = engine_files.write(self._temporary, self._engines, self._ranks, self._blame)
        self._ranks.through_main(self._blame, lambda: self._write(plan, of_engines), self._publish)
        return self.path

    def _encode(self, parts: Mapping[str, Mapping[str, Any]]) -> shard_layout.ShardLayout | None:
        shared, own = Encoder(), Encoder()
        self._structure = {name: shared.encode(state, name) for name, state in parts.items()}
        prefix = f"rank_{self._ranks.rank}"
        own_state = json.dumps({name: own.encode(state, f"{prefix}.{name}") for name, state in self._own.items()})
        tensors = {
            key: tensor for key, tensor in shared.tensors.items() if self._ranks.rank == 0 or isinstance(tensor, DTensor)
        } | own.tensors
        if self._own:  # saved as a tensor, so that each process reads only its own state
            tensors[prefix] = torch.frombuffer(bytearray(own_state.encode()), dtype=torch.uint8)
        self._writer = TensorWriter(tensors, is_main=self._ranks.rank == 0)
        return shard_layout.layout_of(tensors, self._ranks.size)

    def _prepare(self, step: int | None) -> int:
        """Create the temporary folder of the step, remove leftovers of earlier saves, and return the step's number. Runs on rank 0.

        If ``step`` is None, the number is one more than the highest number of an existing step, or 0 if there is no step.

        Raises:
            CheckpointError: If the step already exists, or if the folder is itself a step.
        """
        if (self._root / step_dirs.MANIFEST).exists():
            raise CheckpointError(
                f"no checkpoint can be saved into {self._root}",
                why="this folder is itself a checkpoint; loading it would always restore this one, and never one that is saved into it",
                hint=f"save to its parent folder, {os.path.normpath(self._root / '..')}",
            )
        self._root.mkdir(parents=True, exist_ok=True)
        number = max(step_dirs.numbers(self._root), default=-1) + 1 if step is None else step
        final, temporary = self._root / f"step-{number}", self._root / f"step-{number}.tmp"
        if final.exists():
            raise CheckpointError(f"the checkpoint {final} already exists", hint="choose another step, or remove the checkpoint")
        step_dirs.remove_leftovers(self._root)
        (temporary / DATA).mkdir(parents=True)
        return number

    def _plan(self) -> Any:
        if self._ranks.rank:
            with contextlib.suppress(OSError):
                os.listdir(self._root)  # opening a folder makes a network file system refresh it
            if not (self._temporary / DATA).is_dir():
                step_dirs.check_same_folder(self._root, self._main_root, self._ranks.rank)
                raise self._not_shared(f"this process cannot see {self._temporary / DATA}, which rank 0 created")
        return self._writer.plan(self._temporary / DATA)

    def _not_shared(self, why: str) -> CheckpointError:
        return CheckpointError(f"a checkpoint could not be saved under {self._root}", why=why, hint=_FOLDER_OF_THE_JOB)

    def _write(self, plan: Any, of_engines: dict[str, dict[str, int]]) -> tuple[Any, dict[str, Any]]:
        results, checksums = self._writer.write(plan)
        if self._has_own_index and results:
            checksums = self._writer.write_own_index(results, self._ranks.rank)
            results = []  # rank 0 does not need the results
        files = {f"{DATA}/{name}": entry for name, entry in checksums.items()}
        if files:
            flush_folder(self._temporary / DATA)
        return results, files | of_engines

    def _publish(self, written: list[tuple[Any, dict[str, Any]]]) -> list[None]:
        """Write the manifest for the files of all processes, and rename the folder to ``step-N``. Runs on rank 0.

        Also records the step as the latest one and, if ``keep_last`` was given, removes old steps.

        Args:
            written: For each rank, what ``_write`` returned on that rank. The files of all ranks are already on disk.

        Returns:
            A list with one None per rank, because ``Ranks.through_main`` expects an item for each rank.

        Raises:
            CheckpointError: If a file that a rank wrote is missing on rank 0 or has the wrong size.
        """
        temporary, final = self._temporary, self.path
        for rank, (_, names) in enumerate(written):
            for name, expected in names.items():
                if not (temporary / name).is_file() or (temporary / name).stat().st_size != expected["bytes"]:
                    cause = "" if rank else "; another program that saves to this folder may have removed it"
                    raise self._not_shared(f"rank 0 cannot see the file {temporary / name} that rank {rank} wrote{cause}")
        self._writer.finish([results for results, _ in written])
        entries = {name: entry for _, names in written for name, entry in names.items()}
        files = {name: {"bytes": entry["bytes"], "crc32": entry["crc32"]} for name, entry in entries.items()}
        if any(results for results, _ in written):
            files[f"{DATA}/{dcp_metadata.NAME}"] = checksum(temporary / DATA / dcp_metadata.NAME)
        manifest = {
            "format": FORMAT_WITH_ENGINES if self._engines else FORMAT,
            "step": self._number,
            "versions": {"accelkit": accelkit.__version__, "torch": torch.__version__},
            "world_size": self._ranks.size,
            "data_parallel_size": self._ranks.num_shares,
            "objects": self._objects,
            "classes": self._classes,
            "per_rank": list(self._own),
            "files": files,
            "blocks": {name: entry["blocks"] for name, entry in entries.items() if "blocks" in entry},
            "structure": self._structure,
        }
        if self._engines:
            manifest["engines"] = {name: engine.saver for name, engine in self._engines.items()}
        write_manifest(temporary, manifest)
        flush_folder(temporary / DATA)
        flush_folder(temporary)
        os.rename(temporary, final)
        flush_folder(self._root)
        with atomic_file(self._root / LATEST) as file:
            file.write_text(step_dirs.latest(final), "utf-8")
        if self._keep_last is not None:
            step_dirs.keep_last(self._root, final, self._keep_last)
        return [None] * self._ranks.size

    def _blame(self, error: Exception) -> CheckpointError:
        cause = disk_error(error) or error
        return CheckpointError(
            f"a checkpoint could not be saved under {self._root}",
            why=f"{type(cause).__name__}: {cause}",
            hint=_FOLDER_OF_THE_JOB
            if isinstance(cause, FileNotFoundError)  # the folder of the step, which rank 0 has created, is gone
            else "check the free space and the permissions; earlier checkpoints are unchanged",
        )
