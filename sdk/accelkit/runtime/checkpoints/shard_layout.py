"""Layout of sharded tensors, from which each rank determines independently which shards it writes.

If rank 0 collected a description of every shard of a large job, it would receive gigabytes of data and be busy for minutes. For example,
a model with 723 parameter tensors has three million shards on 4,096 ranks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence

import torch
from torch.distributed.tensor import DTensor

MOST_SHARDS = 16_384
"""The largest number of shards that rank 0 writes into one index. Writing that many takes about two seconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShardLayout:
    """Description of the layout of sharded tensors. If the tensors of two ranks have the same layout, the two ranks get equal descriptions.

    Attributes:
        digest: A digest of the tensors' names, global shapes, dtypes, meshes and placements. It also depends on the order of the tensors.
        num_shards: The number of shards of all tensors on all ranks. A shard that several ranks have is counted once.
    """

    digest: bytes
    num_shards: int


def layout_of(tensors: Mapping[str, torch.Tensor], size: int) -> ShardLayout | None:
    """Return the layout of the DTensors among ``tensors``, or None if a DTensor is not spread over all ranks of the job.

    Args:
        tensors: Tensors by key.
        size: The number of ranks in the job.
    """
    digest, num_shards = hashlib.blake2b(digest_size=16), 0
    meshes: dict[int, str] = {}
    for key, tensor in _sharded(tensors).items():
        mesh = tensor.device_mesh
        if id(mesh) not in meshes:
            ranks = mesh.mesh.flatten().tolist()
            if sorted(ranks) != list(range(size)):
                return None
            meshes[id(mesh)] = f"{tuple(mesh.shape)} {ranks}"
            digest.update(meshes[id(mesh)].encode())
        place = list(meshes).index(id(mesh))
        digest.update(repr((key, tuple(tensor.shape), str(tensor.dtype), tensor.placements, place)).encode())
        num_shards += math.prod(mesh.size(dim) for dim, placement in enumerate(tensor.placements) if not placement.is_replicate())
    return ShardLayout(digest.digest(), num_shards)


def has_large_index(layouts: Sequence[ShardLayout | None]) -> bool:
    """Return whether all ranks have the same layout, and this layout has too many shards (more than MOST_SHARDS) for a single index.

    If so, each rank chooses the shards that it writes, and writes its own index. Otherwise, rank 0 chooses the shards of every rank, and
    writes one index for all ranks. If the layouts differ, rank 0 has to compare the shards of all ranks.

    Args:
        layouts: The result of ``layout_of`` on each rank. If one of them is None, or if there is only one rank, the result is False.
    """
    first = layouts[0]
    return len(layouts) > 1 and first is not None and first.num_shards > MOST_SHARDS and all(layout == first for layout in layouts)


def keys_to_write(tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the keys of the tensors that this rank writes. For a DTensor, the rank writes only its own shard.

    If several ranks have the same shard, only one of them writes it. The ranks take turns, DTensor by DTensor. Empty shards are not
    written. The keys of plain tensors are always in the result.
    """
    sharded = _sharded(tensors)
    left = {key for number, (key, tensor) in enumerate(sharded.items()) if not _writes(tensor, number)}
    return tensors.keys() - left


def _sharded(tensors: Mapping[str, torch.Tensor]) -> dict[str, DTensor]:
    return {key: tensor for key, tensor in tensors.items() if isinstance(tensor, DTensor)}


def _writes(tensor: DTensor, number: int) -> bool:
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None  # layout_of has checked that the mesh contains every rank
    copy, copies = 0, 1
    for dim, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            copies *= tensor.device_mesh.size(dim)
            copy = copy * tensor.device_mesh.size(dim) + coordinate[dim]
    return number % copies == copy and tensor.to_local().numel() > 0
