"""Adds the device type ``fake_xpu`` to torch: ``import accelkit_fake_xpu.torch_backend``. Compiles it the first time.

Initialises no device: the process can still fork.
"""

from __future__ import annotations

import torch

from accelkit_fake_xpu import building, device_module, process_group, settings

_settings = settings.read()
visible_devices = _settings.devices


def _add_to_torch() -> None:
    torch.utils.rename_privateuse1_backend("fake_xpu")
    torch.ops.load_library(str(building.build()))
    torch.ops.fake_xpu.configure([_settings.memory] * len(_settings.devices), _settings.is_protected)
    torch._register_device_module("fake_xpu", device_module)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True, unsupported_dtype=None
    )
    device_module.faults.inject(_settings.faults)
    process_group.register()


_add_to_torch()
