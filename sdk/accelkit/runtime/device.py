"""The function ``accelkit.device``, for plain torch programs that need only a device."""

from __future__ import annotations

import torch

from accelkit.cluster.detection import check_environment, select_cluster
from accelkit.discovery import loading
from accelkit.plugin_calls import call
from accelkit.runtime.configuration import select_devices
from accelkit.runtime.device_checks import check_backward, check_device
from accelkit.selection import select
from accelkit.specs.accelerator import Accelerator


def device(name: str | Accelerator | None = None, index: int | None = None) -> torch.device:
    """Return the torch device of an accelerator, ready for use.

    The function selects the accelerator in the same way as ``Runtime``, loads it, checks it, and makes its device current. It initialises
    the driver and does not join a process group. Call it before the process runs a backward pass on any device: torch counts the devices at
    the first backward pass and never again.

    Args:
        name: The accelerator: a name, ``dist:name``, ``torch:<device_type>``, ``auto`` or an instance. None means ACCELKIT_ACCELERATOR, or
            else ``auto``.
        index: The index of the device. In a job of several processes, None means the device of this process. In a single process, None
            means the first device in ACCELKIT_DEVICES, or the first of all devices if ACCELKIT_DEVICES is not set.

    Raises:
        UnknownNameError, UnavailableError, AmbiguousError, PluginError: If the accelerator cannot be used, for example because it has no
            device. The error says why, and what to do.
        DevicesError: If there is no device with that index, or ACCELKIT_DEVICES is invalid.
        ContradictionError: If ``index`` is None, and more processes were started on this machine than the accelerator has devices.
        UnknownPlacementError: If ``index`` is None, and the local rank is not known before the processes join a process group.
    """
    selection = select(name)
    accelerator = selection.accelerator
    with loading.plugin_errors(accelerator.plugin, f"loading the accelerator {accelerator.name}"):
        accelerator.load()
    if index is not None:
        (chosen,) = call(accelerator, "parse_devices", [index])
    else:
        environment = select_cluster().environment
        check_environment(environment)
        indices = select_devices(accelerator, selection.devices, environment)
        chosen = indices[environment.local_rank % len(indices)]
    check_device(accelerator)
    with loading.plugin_errors(accelerator.plugin, f"setting up {accelerator.name}:{chosen}"):
        the_device = accelerator.device(chosen)
        accelerator.setup_device(the_device)
        the_device = torch.empty(0, device=the_device).device  # the device as tensors report it: the CPU has no index
    check_backward(accelerator, the_device)
    return the_device
