"""Checkpoints in which each rank has an index of its own, as in jobs with very many shards.

``python rank_indexes_program.py SCENARIO FOLDER``. A failed assertion is a failed run.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import distributed_checkpoint_program as program
import pytest
import torch
import torch.distributed as dist
from forked_ranks import runtime, world
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from accelkit import CheckpointError
from accelkit.runtime.checkpoints import checkpoint, shard_layout
from accelkit.runtime.checkpoints.coordinator import Ranks
from accelkit.runtime.checkpoints.dcp_io import TensorReader
from accelkit.runtime.checkpoints.index import Index

VALUES = {
    "rows": torch.arange(12.0).reshape(6, 2),
    "few": torch.arange(3.0),
    "whole": torch.arange(5.0),
    "copies": torch.arange(8.0),
    "last": torch.tensor([7.0]),
}
PLACEMENTS = {
    "rows": (Shard(0), Shard(1)),
    "few": (Shard(0), Shard(0)),
    "whole": (Replicate(), Replicate()),
    "copies": (Replicate(), Shard(0)),
    "last": (Replicate(), Shard(0)),
}


def state_on(mesh):
    return {name: distribute_tensor(value, mesh, PLACEMENTS[name][-mesh.ndim :]) for name, value in VALUES.items()}


def save(env, folder):
    rt = runtime(env, "ddp")
    _ = rt.device
    state = state_on(dist.init_device_mesh("cpu", (2, 2)))
    state |= {"plain": torch.tensor([1.0]), "number": 5}
    checkpoint.save(folder, {"model_0": state}, per_rank={"own": {"rank": torch.tensor([env.global_rank])}}, ranks=Ranks.of_job())
    rt.teardown()


def read_names(env, folder):
    """The index files of which each rank reads its shards: in the layout that was saved, its own and that of rank 0."""
    rt = runtime(env, "ddp")
    _ = rt.device
    data = folder / "step-0" / "data"
    for shape, expected in (((2, 2), {env.global_rank, 0}), ((4,), {0, 1, 2, 3})):
        state, verified = state_on(dist.init_device_mesh("cpu", shape)), []
        reader = TensorReader(data, Index(data, {path.name for path in data.iterdir()}, (env.global_rank, 0), verified.append))
        keys = [f"model_0.{name}" for name in VALUES]
        if shape == (2, 2):  # another rank has written this rank's copy of the other tensors
            keys = [key for key in keys if key in ("model_0.rows", "model_0.few")]
        reader.read([(key, key) for key in keys], lambda path, size, state=state: state[path.removeprefix("model_0.")])
        for key in keys:
            name = key.removeprefix("model_0.")
            found = reader.get(key, key, lambda path, size, like=state[name]: like)
            assert isinstance(found, DTensor)
            assert torch.equal(found.to_local(), state[name].to_local())
        assert set(verified) == {f"__{rank}.metadata" for rank in expected}
    rt.teardown()


def contents(folder):
    world(4, save, folder)
    data = folder / "step-0" / "data"
    assert {path.name for path in data.iterdir()} == {name for rank in range(4) for name in (f"__{rank}.metadata", f"__{rank}_0.distcp")}
    loaded = checkpoint.load(folder)
    assert loaded["model_0"]["number"] == 5
    assert all(torch.equal(loaded["model_0"][name], value) for name, value in VALUES.items())
    index = Index(data, {path.name for path in data.iterdir()})
    index.complete()
    described = index.metadata.state_dict_metadata
    num_chunks = {name: len(described[f"model_0.{name}"].chunks) for name in VALUES}
    assert num_chunks == {"rows": 4, "few": 3, "whole": 1, "copies": 2, "last": 1}, "no shard is written twice"
    places = index.metadata.storage_data.items()
    writers = {where.relative_path for place, where in places if place.fqn in ("model_0.whole", "model_0.copies")}
    assert writers == {"__2_0.distcp", "__3_0.distcp"}, "ranks that have the same shard take turns"
    world(4, read_names, folder)


def damage(folder):
    world(4, save, folder)
    data = folder / "step-0" / "data"
    for name, mentioned in (("__2.metadata", ""), ("__2_0.distcp", "where it holds model_0.rows")):
        whole = (data / name).read_bytes()
        (data / name).write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        with pytest.raises(CheckpointError) as caught:
            checkpoint.load(folder)
        assert f"data/{name}" in caught.value.why
        assert mentioned in caught.value.why
        (data / name).write_bytes(whole)
    assert torch.equal(checkpoint.load(folder)["model_0"]["rows"], VALUES["rows"])


def differing(env, folder):
    """Ranks whose tensors differ in their layout: rank 0 compares their shards."""
    rt = runtime(env, "ddp")
    _ = rt.device
    mesh = dist.init_device_mesh("cpu", (2,))
    state = {"rows": distribute_tensor(VALUES["rows"], mesh, [Shard(0)])}
    if env.global_rank:
        state["surplus"] = DTensor.from_local(torch.ones(1), mesh, [Shard(0)], run_check=False)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(folder, {"model_0": state}, ranks=Ranks.of_job())
    assert "surplus" in caught.value.why
    rt.teardown()


def layouts_differ(folder):
    world(2, differing, folder)
    assert not list(folder.glob("step-0"))


def across_strategies_and_sizes(folder):
    warnings.filterwarnings("ignore", ".*has no random state for rank")
    program.CHAIN = [(1, "single_device"), (2, "fsdp"), (3, "fsdp"), (1, "fsdp")]
    program.across_strategies_and_sizes(folder)
    assert (folder / "step-2" / "data" / "__2.metadata").exists()


SCENARIOS = {f.__name__: f for f in (contents, damage, layouts_differ, across_strategies_and_sizes)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    shard_layout.MOST_SHARDS = 0
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
