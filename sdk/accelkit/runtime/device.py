"""``accelkit.device``: only the device, for plain torch programs."""

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
    """The torch device of an accelerator, selected as ``Runtime`` does, loaded, checked, made current, and usable at once.

    Initialises the driver, and joins no process group. Call it before the first backward pass of the process.

    Args:
        name: A name, ``dist:name``, ``torch:<device_type>``, ``auto`` or an instance; None for ACCELKIT_ACCELERATOR, then ``auto``.
        index: Which of its devices; None for the first of ACCELKIT_DEVICES or of all, and in a job of several processes for this process's.

    Raises:
        UnknownNameError, UnavailableError, AmbiguousError, PluginError: Why it cannot be used, and what to do.
        DevicesError: If there is no device of that index.
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
        the_device = torch.empty(0, device=the_device).device  # as tensors on it name it: the CPU's has no index
    check_backward(accelerator, the_device)
    return the_device
