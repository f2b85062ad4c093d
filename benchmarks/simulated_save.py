"""A save of a sharded model, run as rank 0 of a job whose other ranks are simulated. See ``scale.py``."""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sharded_layout import parameter_shapes, shard_rows, sharded_state
from simulated_ranks import Count, SimulatedGroup, make_group, over_gloo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.device_mesh import DeviceMesh

from accelkit.runtime import seeding
from accelkit.runtime.checkpoints import checkpoint, dcp_metadata, index
from accelkit.runtime.checkpoints.coordinator import Ranks
from accelkit.runtime.checkpoints.index import Index
from accelkit.runtime.checkpoints.manifest import DATA, MANIFEST, read_manifest
from accelkit.runtime.collectives import fingerprint


@dataclasses.dataclass(slots=True)
class Saved:
    """What a save cost.

    Attributes:
        agreement: What the save costs rank 0, without the writing of its shards.
        planning: Seconds that one rank takes to encode its state and plan its file.
        files: Bytes of the manifest and of the index that a rank reads.
        reading: Seconds that a rank takes to read these files when it loads in the layout that was saved. If each rank wrote its own
            index, every rank also reads rank 0's index. Here, the loading rank is rank 0 itself, so that index is not counted twice.
    """

    agreement: Count
    planning: float
    files: int
    reading: float


class _Save(checkpoint.Save):
    """A save whose own writing is not counted."""

    group: SimulatedGroup
    written: Any = None
    planning = 0.0

    def _encode(self, parts: Mapping[str, Mapping[str, Any]]) -> Any:
        with _added_to_planning(self):
            return super()._encode(parts)

    def _plan(self) -> Any:
        with _added_to_planning(self):
            return super()._plan()

    def _write(self, plan: Any, of_engines: Any) -> Any:
        with self.group.clock.outside():
            self.written = super()._write(plan, of_engines)
        return self.written


class _added_to_planning:
    def __init__(self, saving: _Save) -> None:
        self._saving = saving

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._saving.planning += time.process_time() - self._began


def mesh_of(rank: int, size: int) -> DeviceMesh:
    """Return the mesh of all ranks, as it is on one of them."""
    mesh = DeviceMesh("cpu", list(range(size)), _init_backend=False, _rank=rank)
    mesh._thread_id = rank  # otherwise the meshes of two ranks are equal, and DTensor's caches confuse them
    return mesh


def own_state() -> dict[str, Any]:
    return {"random_state": seeding.capture_host(), "loaders": {}, "trackers": {}}


class Others:
    """What the other ranks send in a save: the messages of rank 1, each with the sender's own rank, offsets and sizes."""

    def __init__(self, group: SimulatedGroup, root: Path, shapes: Mapping[str, torch.Size]) -> None:
        self._group, self._root, self._shapes = group, root, shapes
        self._calls: dict[int, int] = {}
        self._layout: Any = None
        self._template: list[WriteItem] = []
        self.saving: _Save

    def next_object(self, rank: int) -> tuple[Any]:
        """Return what the rank sends to rank 0 after its next step. The steps: reading states, ``_encode``, planning, and ``_write``."""
        call = self._calls[rank] = self._calls.get(rank, -1) + 1
        if call == 0:
            return (None,)
        if call == 1:
            if self._layout is None or rank == self._group.size() - 1:  # the last rank's layout is computed too: all should be equal
                self._layout = self._encoded(rank)[1]
            return (self._layout,)
        if call == 2:
            return (None if self.saving._has_own_index else self._plan(rank),)
        return (self._written(rank),)

    def _encoded(self, rank: int) -> tuple[checkpoint.Save, Any]:
        """Return the save of this rank after ``_encode``, and what ``_encode`` returned."""
        with self._group.as_rank(rank):
            peer = checkpoint.Save.__new__(checkpoint.Save)
            peer._own, peer._ranks = own_state(), Ranks(self._group)
            mesh = mesh_of(rank, self._group.size())
            return peer, peer._encode({"model_0": sharded_state(dict(self._shapes), mesh, rank)})

    def plan_of(self, rank: int) -> SavePlan:
        """Return the plan that accelkit makes as this rank."""
        peer, _ = self._encoded(rank)
        with self._group.as_rank(rank):
            peer._root, peer._temporary = self._root, self.saving._temporary
            return peer._plan()

    def _plan(self, rank: int) -> SavePlan:
        if not self._template:
            self._template = self.plan_of(1).items
        plan = SavePlan([self._item(item, rank) for item in self._template])
        if rank in (2, self._group.size() - 1):
            real = self.plan_of(rank).items[: len(self._shapes)]
            assert plan.items[: len(self._shapes)] == real, f"rank {rank} would plan differently"
        return plan

    def _item(self, item: WriteItem, rank: int) -> WriteItem:
        name = item.index.fqn.removeprefix("model_0.")
        if name not in self._shapes:
            index = dataclasses.replace(item.index, fqn=item.index.fqn.replace("rank_1", f"rank_{rank}", 1))
            return dataclasses.replace(item, index=index)
        shape = self._shapes[name]
        first, rows = shard_rows(shape[0], rank, self._group.size())
        offsets, sizes = torch.Size((first, *[0] * (len(shape) - 1))), torch.Size((rows, *shape[1:]))
        data = dataclasses.replace(item.tensor_data, chunk=ChunkStorageMetadata(offsets, sizes))
        return dataclasses.replace(item, index=MetadataIndex(item.index.fqn, offsets), tensor_data=data)

    def _written(self, rank: int) -> tuple[Any, dict[str, Any]]:
        results, files = self.saving.written
        own = {re.sub("__0(?=[_.])", f"__{rank}", name): entry for name, entry in files.items()}
        for name, entry in own.items():
            with (self.saving._temporary / name).open("wb") as file:
                os.truncate(file.fileno(), entry["bytes"])
        translated = [self._result(result, rank) for result in results]
        return [result for result in translated if result is not None], own

    def _result(self, result: Any, rank: int) -> Any:
        where = dataclasses.replace(result.storage_data, relative_path=result.storage_data.relative_path.replace("__0_", f"__{rank}_"))
        name = result.index.fqn.removeprefix("model_0.")
        if name not in self._shapes:
            fqn = result.index.fqn.replace("rank_0", f"rank_{rank}", 1)
            return dataclasses.replace(result, index=dataclasses.replace(result.index, fqn=fqn), storage_data=where)
        shape = self._shapes[name]
        first, rows = shard_rows(shape[0], rank, self._group.size())
        if not rows:  # only one rank writes the empty shard
            return None
        index = MetadataIndex(result.index.fqn, torch.Size((first, *[0] * (len(shape) - 1))), rank)
        return dataclasses.replace(result, index=index, storage_data=where)


def save(size: int, layers: int, divisor: int, folder: Path | None = None) -> Saved:
    """Save the model on ``size`` ranks."""
    group = make_group(size)
    shapes = parameter_shapes(layers, divisor)
    state = sharded_state(shapes, mesh_of(0, size), 0)
    with tempfile.TemporaryDirectory(dir=folder) as root:
        others = Others(group, Path(root), shapes)
        group.next_object = others.next_object
        saving = others.saving = _Save.__new__(_Save)
        saving.group = group
        with group.measured() as count:
            fingerprint.verify(over_gloo(), "save_state")
            ranks = Ranks(group)
            ranks.each(RuntimeError, lambda: None)  # here save_state reads the states of the objects
            saving.__init__(Path(root), {"model_0": state}, per_rank=own_state(), ranks=ranks)  # type: ignore[misc]
            step = saving.finish()
        began = time.process_time()
        manifest = read_manifest(step)
        names = {name.partition("/")[2] for name in manifest["files"]}
        found = Index(step / DATA, names, (0,))
        reading = time.process_time() - began
        read = [step / DATA / name for name in (dcp_metadata.NAME, index.name_of(0)) if name in names]
        assert found.metadata.state_dict_metadata
        return Saved(count, saving.planning, (step / MANIFEST).stat().st_size + sum(path.stat().st_size for path in read), reading)
