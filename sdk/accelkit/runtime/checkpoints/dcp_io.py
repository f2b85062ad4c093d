"""Tensors in files of torch.distributed.checkpoint. Every process writes its shards and reads what its own layout needs.

A save has the stages of ``SavePlanner`` and ``StorageWriter``: local plan, global plan, write, finish. ``TensorWriter`` has a method for
each stage, so that the processes can communicate through ``coordinator.Ranks`` between two stages. If a process dies, ``Ranks`` raises an
error that names the process. If there are very many shards, no global plan is made: each process uses ``plan_alone`` and writes
its own index.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.utils.serialization import config

from accelkit.runtime.checkpoints import index, mapped_tensors, shard_layout
from accelkit.runtime.checkpoints.atomic_io import ChecksummedFile
from accelkit.runtime.checkpoints.index import Index
from accelkit.runtime.checkpoints.mapped_tensors import HOST, TensorFiles

Layout = Callable[[str, torch.Size], DTensor | None]


def no_layout(path: str, size: torch.Size) -> None:
    """Return None for every tensor, so that ``TensorReader.read`` reads each tensor whole, into main memory."""


class _Planner(DefaultSavePlanner):
    """A planner for the program's tensors. If ``copies`` is set, the values to write are taken from these copies of the tensors."""

    copies: Mapping[str, torch.Tensor] | None = None

    def lookup_object(self, index: MetadataIndex) -> Any:
        return super().lookup_object(index) if self.copies is None else self.copies[index.fqn]


class _SummingFileSystem(FileSystem):
    """A file system that computes checksums of the files that it writes.

    ``checksums`` maps the name of each file to the size and CRC-32 of the file and the CRC-32 of each block.
    """

    def __init__(self) -> None:
        self.checksums: dict[str, dict[str, Any]] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb"
        with ChecksummedFile(Path(path)) as file:
            yield file
        self.checksums[Path(path).name] = file.checksum() | {"blocks": file.block_checksums()}


class TensorWriter:
    """A writer that puts one process's part of the tensors into a folder.

    Args:
        tensors: Tensors by key. For a DTensor, this process writes its shard, or nothing if another process writes the same shard. A
            plain tensor is written whole, so it must be given on one process only.
        is_main: Whether this is rank 0, which plans for all processes and writes the index.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], *, is_main: bool) -> None:
        self._tensors, self._is_main = dict(tensors), is_main
        self._planner = _Planner(flatten_state_dict=False)
        self._metadata: Metadata | None = None

    def copy_to_host(self) -> None:
        """Copy the tensors to main memory, so that their current values are written even if they change later."""
        self._planner.copies = {key: _host_copy(tensor) for key, tensor in self._tensors.items()}

    def plan(self, folder: Path) -> SavePlan:
        """Return the local plan, which lists the values that this process has. ``write`` writes into ``folder``, which must exist."""
        self._folder = folder
        # Do not overlap copies: that needs streams, which not every device's module has.
        self._writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True, per_thread_copy_ahead=0)
        self._writer.fs = self._files = _SummingFileSystem()
        self._planner.set_up_planner(self._tensors, is_coordinator=self._is_main)
        self._writer.set_up_storage_writer(self._is_main)
        return self._writer.prepare_local_plan(self._planner.create_local_plan())

    def plan_all(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return one plan per process. The plan of a process lists the values that the process writes. Runs on rank 0.

        ``plans`` are the local plans of all processes. Both lists are in the order of ranks.

        Raises:
            ValueError: If the shards of a tensor do not make up the whole tensor.
        """
        planned, self._metadata = self._planner.create_global_plan(plans)
        return self._writer.prepare_global_plan(planned)

    def plan_alone(self, plan: SavePlan, rank: int) -> SavePlan:
        """Return a plan that lists the values that this process writes. No communication with other processes is needed.

        See ``shard_layout``.

        Args:
            plan: The local plan of this process.
            rank: The rank of this process.
        """
        # The position in the list given to prepare_global_plan determines the name of the file.
        keys = shard_layout.keys_to_write(self._tensors)
        own = dataclasses.replace(plan, items=[item for item in plan.items if item.index.fqn in keys])
        (planned,), self._metadata = self._planner.create_global_plan([own])
        return self._writer.prepare_global_plan([*[SavePlan([])] * rank, planned])[rank]

    def write(self, plan: SavePlan) -> tuple[list[WriteResult], dict[str, dict[str, Any]]]:
        """Write the file of this process, or no file if the plan is empty. The file is on disk when this method returns.

        Returns:
            The results from which ``finish`` creates the index, and the checksums of the file and of its blocks, by file name.
        """
        if not plan.items:  # avoid writing an empty file
            return [], {}
        # The whole file has a checksum. Another checksum for each tensor would take as long as writing the tensor.
        with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
            results = self._writer.write_data(self._planner.finish_plan(plan), self._planner).wait()
        return results, self._files.checksums

    def write_own_index(self, results: list[WriteResult], rank: int) -> dict[str, dict[str, Any]]:
        """Write an index that lists only what this process wrote. The index is on disk when this method returns.

        Call this after ``write``, with its results, if the plan is from ``plan_alone``.

        Returns:
            One dict with the checksums that ``write`` returned and those of the index, by file name.
        """
        assert self._metadata is not None
        self._metadata.storage_data = {result.index: result.storage_data for result in results}
        self._metadata.storage_meta = self._writer.storage_meta()
        with self._files.create_stream(self._folder / index.name_of(rank), "wb") as file:
            pickle.dump(self._metadata, file)
            os.fsync(file.fileno())
        return self._files.checksums

    def finish(self, results: list[list[WriteResult]]) -> None:
        """Write the index of all files, or nothing if there are no tensors. Runs on rank 0.

        ``results`` contains the results of ``write`` on each process. A process that wrote its own index contributes no results.
        """
        if any(results):
            assert self._metadata is not None
            self._writer.finish(self._metadata, results)


class TensorReader:
    """A reader of tensors in a folder. It reads each tensor in the requested layout, without the shards that this layout does not need.

    Args:
        folder: The folder that a ``TensorWriter`` filled. None if there were no tensors.
        found: The index of the tensors in the folder.
    """

    def __init__(self, folder: Path | None, found: Index) -> None:
        self._files = None if folder is None else TensorFiles(folder)
        self._index = found
        self._metadata = found.metadata
        self._read: dict[tuple[Any, ...], torch.Tensor] = {}

    def read(self, wanted: Sequence[tuple[str, str]], layout: Layout, mapped: Collection[str] = ()) -> None:
        """Read the tensors that ``get`` will return.

        Args:
            wanted: A pair for each tensor: the tensor's path in the loaded state (``model_0.layer.weight``), and the key under which the
                checkpoint stores the tensor. Tied tensors have different paths, but the same key.
            layout: A function that takes the path and the global size of a tensor. If it returns a DTensor, the tensor gets the layout of
                the DTensor. If it returns None, the whole tensor is read into main memory.
            mapped: Keys of tensors whose values the caller only copies. If possible, these tensors are mapped tensors
                (see ``mapped_tensors``), whose memory is not necessarily aligned.
        """
        passes: list[dict[str, tuple[Any, ...]]] = []
        for path, key in wanted:
            described = self._described(key)
            like = layout(path, described.size)
            if like is None and sum(math.prod(chunk.sizes) for chunk in described.chunks) < math.prod(described.size):
                self._index.complete()
            if (identity := _identity(key, like)) in self._read:
                continue
            if like is None and len(described.chunks) == 1:
                self._read[identity] = self._load(key, described, is_mapped=key in mapped)
                continue
            dtype = described.properties.dtype
            if like is None:
                empty = torch.empty(described.size, dtype=dtype, device=HOST)
            else:
                empty = torch.empty_like(like, dtype=dtype, requires_grad=False)
            self._read[identity] = empty
            free = next((one for one in passes if key not in one), None)  # one pass can read a key in only one layout
            if free is None:
                passes.append(free := {})
            free[key] = identity
        for one in passes:
            for key, tensor in self._fill({key: self._read[identity] for key, identity in one.items()}, mapped).items():
                self._read[one[key]] = tensor

    def places(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield the location of each stored part of a tensor: the tensor's key, the file's name, and the offset and length in bytes."""
        self._index.complete()
        for place, where in (self._metadata.storage_data or {}).items():
            yield place.fqn, str(where.relative_path), where.offset, where.length

    def get(self, path: str, key: str, layout: Layout) -> torch.Tensor:
        """Return a tensor that ``read`` has read. Pass the same ``path``, ``key`` and ``layout`` as to ``read``.

        The same key in the same layout gives the same tensor object, so tied tensors stay tied.
        """
        return self._read[_identity(key, layout(path, self._described(key).size))]

    def _described(self, key: str) -> TensorStorageMetadata:
        if key not in self._metadata.state_dict_metadata:
            self._index.complete()
        described = self._metadata.state_dict_metadata[key]
        assert isinstance(described, TensorStorageMetadata)
        return described

    def _load(self, key: str, described: TensorStorageMetadata, *, is_mapped: bool) -> torch.Tensor:
        """Load a tensor that was saved whole, without the additional copy that ``FileSystemReader`` would make."""
        assert self._files is not None
        where = self._metadata.storage_data[MetadataIndex(key, described.chunks[0].offsets)]
        tensor = self._files.load(where, is_mapped=is_mapped)
        if tensor.size() != described.size:
            raise TypeError(f"the tensor {key} has the shape {list(tensor.size())}, not {list(described.size)}")
        return tensor

    def _fill(self, tensors: dict[str, torch.Tensor], mapped: Collection[str]) -> dict[str, torch.Tensor]:
        """Fill ``tensors`` with values from the saved shards, and return mapped tensors that replace some of them.

        A mapped tensor (see ``mapped_tensors``) is returned for a DTensor if all of these conditions hold:

        - The DTensor's key is in ``mapped``.
        - This process's part of the DTensor is in main memory.
        - This part lies within a single saved shard, which can be mapped.

        The caller uses the mapped tensor instead of the DTensor, which is not filled. All other tensors are filled. The saved shards are
        read one at a time.
        """
        assert self._files is not None
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        planner.set_up_planner(tensors, self._metadata, is_coordinator=True)
        local = planner.create_local_plan()
        if sum(math.prod(item.lengths) for item in local.items) < sum(_num_own_elements(tensor) for tensor in tensors.values()):
            self._index.complete()
            local = planner.create_local_plan()
        found: dict[str, torch.Tensor] = {}
        for item in planner.finish_plan(planner.create_global_plan([local])[0]).items:
            key = item.dest_index.fqn
            saved = self._files.load(self._metadata.storage_data[item.storage_index], is_mapped=True)
            part = saved
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                part = part.narrow(dimension, start, length)
            whole = _with_local_part(tensors[key], part) if key in mapped and mapped_tensors.is_mapped(saved) else None
            if whole is not None:
                found[key] = whole
                continue
            target = planner.resolve_tensor(item).detach()
            if target.size() != part.size():
                raise TypeError(f"a shard of the tensor {key} has the shape {list(part.size())}, not {list(target.size())}")
            target.copy_(part)
            planner.commit_tensor(item, target)
        return found


def _with_local_part(like: torch.Tensor, part: torch.Tensor) -> DTensor | None:
    """Return a DTensor with the layout of ``like`` and the local tensor ``part``, marked as mapped (see ``mapped_tensors``).

    Return None if ``like`` is not a DTensor in main memory, or if the local tensor of ``like`` does not have the shape of ``part``.
    """
    if not isinstance(like, DTensor) or not like.to_local().is_cpu or like.to_local().shape != part.shape:
        return None
    whole = DTensor.from_local(part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())
    mapped_tensors.mark(whole)
    return whole


def _identity(key: str, like: DTensor | None) -> tuple[Any, ...]:
    return (key,) if like is None else (key, like.device_mesh, tuple(like.placements), like.to_local().device)


def _num_own_elements(tensor: torch.Tensor) -> int:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).numel()


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of this process's part of a tensor, in main memory."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    local = local.detach()
    return local.clone() if local.is_cpu else local.cpu()
