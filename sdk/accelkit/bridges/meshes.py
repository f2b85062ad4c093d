"""Meshes of devices for frameworks that call torch's ``init_device_mesh``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.distributed import device_mesh

from accelkit.device_mesh import make_mesh_of_shape


@contextlib.contextmanager
def meshes_of_any_device_type(*importers: Any) -> Iterator[None]:
    """Make ``init_device_mesh`` accept device types that do not consist only of letters, as DeviceMesh does.

    Args:
        importers: Modules that may have imported the function when they were imported themselves.
    """
    changed = [(module, module.init_device_mesh) for module in (device_mesh, *importers) if hasattr(module, "init_device_mesh")]
    for module, _ in changed:
        module.init_device_mesh = make_mesh_of_shape
    try:
        yield
    finally:
        for module, before in changed:
            module.init_device_mesh = before
