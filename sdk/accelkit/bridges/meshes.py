"""Device meshes for frameworks that call torch's ``init_device_mesh``, which rejects device types such as ``fake_xpu``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import distributed
from torch.distributed import device_mesh

from accelkit.device_mesh import make_mesh_of_shape


@contextlib.contextmanager
def meshes_of_any_device_type(*importers: Any) -> Iterator[None]:
    """Inside the ``with`` block, make ``init_device_mesh`` accept device types with characters other than letters, such as ``fake_xpu``.

    Outside the block, ``init_device_mesh`` rejects these device types, although torch's class ``DeviceMesh`` accepts them.

    Args:
        importers: Modules, besides torch's own, into which ``init_device_mesh`` may have been imported.
    """
    modules = (device_mesh, distributed, *importers)
    changed = [(module, module.init_device_mesh) for module in modules if hasattr(module, "init_device_mesh")]
    original = device_mesh.init_device_mesh

    def init(device_type: str, mesh_shape: tuple[int, ...], **options: Any) -> device_mesh.DeviceMesh:
        make = original if device_type.isalpha() else make_mesh_of_shape
        return make(device_type, mesh_shape, **options)

    for module, _ in changed:
        module.init_device_mesh = init
    try:
        yield
    finally:
        for module, before in changed:
            module.init_device_mesh = before
