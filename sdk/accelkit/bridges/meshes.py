"""Meshes of devices for frameworks that call torch's ``init_device_mesh``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed import device_mesh

from accelkit.discovery import device_table


def make_mesh(device_type: str, shape: tuple[int, ...], **options: Any) -> device_mesh.DeviceMesh:
    """Return a mesh of this shape whose processes have consecutive ranks, for device types of any name."""
    ranks = torch.arange(math.prod(shape), device=device_table.host_name()).view(shape)
    return device_mesh.DeviceMesh(device_type, ranks, **options)


@contextlib.contextmanager
def meshes_of_any_device_type(*importers: Any) -> Iterator[None]:
    """Make ``init_device_mesh`` accept device types that do not consist only of letters, as DeviceMesh does.

    Args:
        importers: Modules that may have imported the function when they were imported themselves.
    """
    changed = [(module, module.init_device_mesh) for module in (device_mesh, *importers) if hasattr(module, "init_device_mesh")]

    def init(device_type: str, mesh_shape: tuple[int, ...], **options: Any) -> device_mesh.DeviceMesh:
        return make_mesh(device_type, mesh_shape, **options)

    for module, _ in changed:
        module.init_device_mesh = init
    try:
        yield
    finally:
        for module, before in changed:
            module.init_device_mesh = before
