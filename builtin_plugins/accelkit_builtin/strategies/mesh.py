"""The meshes of devices on which ``fsdp`` and ``parallel`` shard."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def make_mesh(device_type: str, sizes: Mapping[str, int]) -> DeviceMesh:
    """Return a mesh of the devices of all processes. All processes must call this, because it creates process groups.

    It does not call torch's ``init_device_mesh``, which refuses device types that do not consist of letters, such as ``fake_xpu``
    (https://github.com/pytorch/pytorch/pull/124390). The class ``DeviceMesh`` accepts them.

    Args:
        device_type: The device type of torch.
        sizes: The size of each dimension by name. Their product is the number of processes. Neighbours in the last dimension have
            consecutive ranks.
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    ranks = torch.arange(math.prod(sizes.values()), device=torch.default_generator.device)
    return DeviceMesh(device_type, ranks.view(tuple(sizes.values())), mesh_dim_names=tuple(sizes))
