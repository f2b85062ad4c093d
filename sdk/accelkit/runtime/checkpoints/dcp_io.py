"""Tensors in files of torch.distributed.checkpoint: every process writes its shards, and reads what its own layout needs.

The steps are those of its ``SavePlanner`` and ``StorageWriter`` (local plan, global plan, write, finish), called one by one, so that
between them the processes can agree by our own messages, in which a process that died is named.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.utils.serialization import config

from accelkit.regular_file import open_regular
from accelkit.runtime.checkpoints.atomic_io import FilePart, SummedFile
from accelkit.runtime.checkpoints.dcp_metadata import read_index

Layout = Callable[[str, torch.Size], DTensor | None]


_HOST = "cpu"  # torch's word for main memory


def no_layout(path: str, size: torch.Size) -> None:
    """Every tensor whole, in main memory."""


class _Planner(DefaultSavePlanner):
    """Plans by the tensors' layout; writes from copies in main memory where there are some."""

    copies: Mapping[str, torch.Tensor] | None = None

    def lookup_object(self, index: MetadataIndex) -> Any:
        return super().lookup_object(index) if self.copies is None else self.copies[index.fqn]


class _SummingFileSystem(FileSystem):
    """Keeps the checksum of each file that was written, by its name."""

    def __init__(self) -> None:
        self.checksums: dict[str, dict[str, int]] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb"
        with SummedFile(Path(path)) as file:
            yield file
        self.checksums[Path(path).name] = file.checksum()


class TensorWriter:
    """One process's part of writing tensors into a folder.

    Args:
        tensors: By key: DTensors, of which this process writes its shard (or nothing, if another writes the same one), and plain
            ones, which this process writes whole: give each plain one on one process only.
        is_main: Whether this is rank 0, which plans for all and writes the index.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], *, is_main: bool) -> None:
        self._tensors, self._is_main = dict(tensors), is_main
        self._planner = _Planner(flatten_state_dict=False)
        self._metadata: Metadata | None = None

    def copy_to_host(self) -> None:
        """From here on the tensors may change: what is written is what they are now."""
        self._planner.copies = {key: _host_copy(tensor) for key, tensor in self._tensors.items()}

    def plan(self, folder: Path) -> SavePlan:
        """What this process has. ``folder`` is there already."""
        # Nothing is copied ahead: that needs streams of the device's module, which not every device has.
        self._writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True, per_thread_copy_ahead=0)
        self._writer.fs = self._files = _SummingFileSystem()
        self._planner.set_up_planner(self._tensors, is_coordinator=self._is_main)
        self._writer.set_up_storage_writer(self._is_main)
        return self._writer.prepare_local_plan(self._planner.create_local_plan())

    def plan_all(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On rank 0: who writes what.

        Raises:
            ValueError: If the shards of a tensor are not the whole tensor.
        """
        planned, self._metadata = self._planner.create_global_plan(plans)
        return self._writer.prepare_global_plan(planned)

    def write(self, plan: SavePlan) -> tuple[list[WriteResult], dict[str, dict[str, int]]]:
        """Write this process's file, on disk when this returns; what the index is made of, and the checksum of each file by its name."""
        if not plan.items:  # else a file of nothing
            return [], {}
        # The whole file has a checksum; another for each tensor would take as long as writing it.
        with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
            results = self._writer.write_data(self._planner.finish_plan(plan), self._planner).wait()
        return results, self._files.checksums

    def finish(self, results: list[list[WriteResult]]) -> None:
        """On rank 0: write the index of all files; none where there is no tensor at all."""
        if any(results):
            assert self._metadata is not None
            self._writer.finish(self._metadata, results)


class TensorReader:
    """Reads tensors from a folder, each in the layout that is asked for; other shards are not read.

    Args:
        folder: What a ``TensorWriter`` filled; None if there was no tensor at all.
        files: The names of the files in it that hold tensors, which were verified. The index must name these and no others.

    Raises:
        UnpicklingError: If the index is none, or names other files.
    """

    def __init__(self, folder: Path | None, files: Collection[str]) -> None:
        self._folder = folder
        self._metadata = read_index(folder, files) if folder is not None else Metadata({})
        self._read: dict[tuple[Any, ...], torch.Tensor] = {}

    def read(self, wanted: Sequence[tuple[str, str]], layout: Layout) -> None:
        """Read now what ``get`` will be asked for.

        Args:
            wanted: Pairs of path and key.
            layout: Says for a path and a global size which DTensor it shall be like; None for a plain whole tensor, in main memory.
        """
        passes: list[dict[str, torch.Tensor]] = []
        for path, key in wanted:
            described = self._metadata.state_dict_metadata[key]
            assert isinstance(described, TensorStorageMetadata)
            like = layout(path, described.size)
            if (identity := _identity(key, like)) in self._read:
                continue
            if like is None and len(described.chunks) == 1:
                self._read[identity] = self._load(key, described)
                continue
            dtype = described.properties.dtype
            if like is None:
                empty = torch.empty(described.size, dtype=dtype, device=_HOST)
            else:
                empty = torch.empty_like(like, dtype=dtype, requires_grad=False)
            self._read[identity] = empty
            free = next((one for one in passes if key not in one), None)  # a pass reads a key in one layout
            if free is None:
                passes.append(free := {})
            free[key] = empty
        for one in passes:
            self._fill(one)

    def get(self, path: str, key: str, layout: Layout) -> torch.Tensor:
        """One that was read. The same key in the same layout is the same tensor."""
        described: Any = self._metadata.state_dict_metadata[key]
        return self._read[_identity(key, layout(path, described.size))]

    def _load(self, key: str, described: TensorStorageMetadata) -> torch.Tensor:
        """One that was saved whole, in the memory into which it is read. The reader below would copy it once more."""
        assert self._folder is not None
        where = self._metadata.storage_data[MetadataIndex(key, described.chunks[0].offsets)]
        with open(open_regular(self._folder / where.relative_path), "rb", buffering=0) as file:
            tensor: torch.Tensor = torch.load(FilePart(file, where.offset, where.length), map_location=_HOST, weights_only=True)  # type: ignore[arg-type]
        if tensor.size() != described.size:
            raise TypeError(f"{key} is a tensor of {list(tensor.size())}, not of {list(described.size)}")
        return tensor

    def _fill(self, tensors: dict[str, torch.Tensor]) -> None:
        assert self._folder is not None
        reader = FileSystemReader(self._folder)
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        planner.set_up_planner(tensors, self._metadata, is_coordinator=True)
        reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        plan = reader.prepare_local_plan(planner.create_local_plan())
        (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
        reader.read_data(planner.finish_plan(plan), planner).wait()


def _identity(key: str, like: DTensor | None) -> tuple[Any, ...]:
    return (key,) if like is None else (key, like.device_mesh, tuple(like.placements), like.to_local().device)


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of it, in main memory, at another place than before."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    local = local.detach()
    return local.clone() if local.is_cpu else local.cpu()
