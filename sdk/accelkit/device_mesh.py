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
    """Like torch's ``init_device_mesh``, but for device types of any name. All processes must call this function.

    ``init_device_mesh`` rejects device types that contain characters other than letters, such as the underscore in ``fake_xpu``
    (https://github.com/pytorch/pytorch/pull/124390). The class ``DeviceMesh`` accepts these device types.

    Args:
        device_type: The torch device type.
        mesh_shape: The size of each dimension. The product of the sizes is the number of processes.
        options: Keyword arguments of ``DeviceMesh``, such as ``mesh_dim_names``. Unlike in ``init_device_mesh``, ``backend_override``
            is not a dict but a tuple, which contains a pair of a backend and its options for each dimension.
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    ranks = torch.arange(math.prod(mesh_shape), device=device_table.host_name())
    return DeviceMesh(device_type, ranks.view(mesh_shape), **options)
