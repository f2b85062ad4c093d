"""Creation of device meshes for all device types, including those that torch's ``init_device_mesh`` rejects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelkit.discovery import device_table
from accelkit.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def make_mesh(device_type: str, sizes: Mapping[str, int]) -> DeviceMesh:
    """Return a mesh of the devices of all processes. All processes must call this function, because it creates process groups.

    Args:
        device_type: The torch device type.
        sizes: The size of each dimension, by name. The product of the sizes is the number of processes. Neighbours in the last dimension
            have consecutive ranks.
    """
    return make_mesh_of_shape(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def make_mesh_of_shape(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
    backend_override: Mapping[int | str, Any] | None = None,
) -> DeviceMesh:
    """Create a device mesh as torch's ``init_device_mesh`` does, but accept any device type. All processes must call this function.

    ``init_device_mesh`` rejects device types that contain characters other than letters, such as the underscore in ``fake_xpu``
    (https://github.com/pytorch/pytorch/pull/124390). The class ``DeviceMesh`` accepts these device types.

    Args:
        device_type: The torch device type.
        mesh_shape: The size of each dimension. The product of the sizes is the number of processes.
        mesh_dim_names: The name of each dimension.
        backend_override: The backends of some dimensions. Each key is the index or the name of a dimension. Each value is the name of a
            backend, the backend's options, or a tuple of the name and the options.

    Raises:
        UsageError: If there is not exactly one name for each dimension, if two dimensions have the same name, if a key of
            ``backend_override`` is not the index or the name of a dimension, or if two keys refer to the same dimension.
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    if mesh_dim_names is not None and (len(mesh_dim_names) != len(mesh_shape) or len(set(mesh_dim_names)) != len(mesh_dim_names)):
        raise UsageError(
            f"mesh_dim_names={tuple(mesh_dim_names)} is invalid",
            why=f"the mesh has {len(mesh_shape)} dimensions",
            hint="give each dimension a name of its own",
        )
    options: dict[str, Any] = {}
    if backend_override is not None:
        options["backend_override"] = _backends(backend_override, len(mesh_shape), mesh_dim_names or ())
    ranks = torch.arange(math.prod(mesh_shape), device=device_table.host_name())
    return DeviceMesh(device_type, ranks.view(mesh_shape), mesh_dim_names=mesh_dim_names, **options)


def _backends(overrides: Mapping[int | str, Any], ndim: int, names: tuple[str, ...]) -> tuple[tuple[str | None, Any], ...]:
    """Return the name of the backend and its options for each dimension. None stands for the default."""
    found: dict[int, tuple[str | None, Any]] = {}
    for key, value in overrides.items():
        dim = names.index(key) if key in names else key
        if dim not in range(ndim) or dim in found:
            raise UsageError(
                f"the key {key!r} of backend_override is invalid",
                why=f"there is another key for dimension {dim}" if dim in found else f"the mesh has {ndim} dimensions, named {names}",
                hint="use the index or the name of each dimension at most once",
            )
        found[int(dim)] = (value, None) if isinstance(value, str) else tuple(value) if isinstance(value, tuple) else (None, value)
    return tuple(found.get(dim, (None, None)) for dim in range(ndim))
