"""Creation of device meshes for device types of any name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelkit.discovery import device_table

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def make_mesh(device_type: str, sizes: Mapping[str, int]) -> DeviceMesh:
    """Return a mesh of the devices of all processes. All processes must call this function, because it creates process groups.

    Args:
        device_type: The torch device type.
        sizes: The size of each dimension by name. Their product is the number of processes. Neighbours in the last dimension have
            consecutive ranks.
    """
    return make_mesh_of_shape(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def make_mesh_of_shape(device_type: str, mesh_shape: tuple[int, ...], **options: Any) -> DeviceMesh:
    """Like torch's ``init_device_mesh``, with the same arguments, but for every device type.

    ``init_device_mesh`` refuses device types that contain anything but letters, such as the underscore in ``fake_xpu``
    (https://github.com/pytorch/pytorch/pull/124390). The class ``DeviceMesh`` accepts these device types.
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    ranks = torch.arange(math.prod(mesh_shape), device=device_table.host_name())
    return DeviceMesh(device_type, ranks.view(mesh_shape), **options)
