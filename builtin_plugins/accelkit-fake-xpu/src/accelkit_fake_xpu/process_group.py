"""fxccl, the backend for collectives on ``fake_xpu``.

Use ``init_process_group("fxccl")``, or ``"cpu:gloo,fake_xpu:fxccl"`` for collectives on CPU tensors too.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store


def register() -> None:
    """Register the backend with torch.distributed, unless torch was built without torch.distributed or gloo. Opens no connection."""
    if dist.is_available() and dist.is_gloo_available():
        dist.Backend.register_backend("fxccl", _create, devices=["fake_xpu"])


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> object:
    """Return the backend of one process group: a C++ object that wraps a gloo backend.

    C++ code can return a backend to Python only as part of a process group. So this function creates a temporary group with a gloo backend,
    lets ``wrap_gloo`` replace this backend with the C++ object, and takes the C++ object from the group.
    """
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    gloo._set_sequence_number_for_group()
    group = dist.ProcessGroup(store, rank, size)
    device = torch.device("fake_xpu")
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    group._register_backend(device, dist.ProcessGroup.BackendType.GLOO, gloo)
    torch.ops.fake_xpu.wrap_gloo(group.boxed())
    return group._get_backend(device)
