"""Accelerate's FSDP2 on a plugin's device.

FSDP2 needs a mesh, and the parameters must be on the device. torch makes the mesh and moves the parameters only for device types that it
knows.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh

from accelkit.bridges.parameter_swapping import SwappingParameters
from accelkit.device_mesh import make_mesh


def is_sharding() -> bool:
    """Return whether the Accelerators of this process shard models with FSDP.

    After a reset of Accelerate's state, this function returns False, whereas ``Accelerator.is_fsdp2`` raises an AttributeError.
    """
    return AcceleratorState._shared_state.get("fsdp_plugin") is not None


@contextlib.contextmanager
def sharding_on(device: torch.device) -> Iterator[None]:
    """Inside the ``with`` block, make ``fully_shard`` shard over devices of ``device.type``, unless its caller passes a mesh.

    The block replaces ``torch.distributed.fsdp.fully_shard``. Accelerate imports this function only when it prepares a model, so Accelerate
    uses the replacement. If no mesh is passed, torch's own function would make one for torch's current accelerator, whatever ``device`` is,
    and would refuse device types such as ``fake_xpu``. The replacement can also move parameters to devices that torch's own function does
    not support.
    """
    before = fsdp.fully_shard

    @functools.wraps(before)
    def fully_shard(module: Any, *, mesh: DeviceMesh | None = None, **options: Any) -> Any:
        with SwappingParameters():
            return before(module, mesh=mesh if mesh is not None else _mesh(device.type, dist.group.WORLD), **options)

    fsdp.fully_shard = fully_shard
    try:
        yield
    finally:
        fsdp.fully_shard = before


@functools.lru_cache(maxsize=1)
def _mesh(device_type: str, group: Any) -> DeviceMesh:
    return make_mesh(device_type, {"shard": dist.get_world_size(group)})
