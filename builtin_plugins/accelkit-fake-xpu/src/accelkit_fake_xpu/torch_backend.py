"""Registration of the device type ``fake_xpu`` with torch, which happens when this module is imported.

The import compiles the C++ library, unless it has already been compiled for the installed torch. The import initialises no device, so the
process can still fork.
"""

from __future__ import annotations

import atexit
import contextlib
import os

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from accelkit import wait_for_torch_threads
from accelkit_fake_xpu import device_module, process_group, reductions, settings
from accelkit_fake_xpu.build import LIBRARY

_settings = settings.read()
visible_devices = _settings.devices


def _finish() -> None:
    """Wait for queued copies and for torch's threads before the interpreter exits.

    Without this wait, the threads that run queued copies could access data that no longer exists. Also, an autograd thread may still have
    to release the Python objects of a backward pass that has already returned. The thread must not do so while Python is shutting down.
    """
    with contextlib.suppress(RuntimeError):  # the device was lost, or belongs to another process
        if device_module.is_initialized():
            for index in range(device_module.device_count()):
                device_module.synchronize(index)
            wait_for_torch_threads()


def _add_to_torch() -> None:
    rename_privateuse1_backend("fake_xpu")
    torch.ops.load_library(str(LIBRARY.build()))  # type: ignore[no-untyped-call]
    torch.ops.fake_xpu.register_remaining_operators()
    torch.ops.fake_xpu.configure([_settings.memory] * len(_settings.devices), _settings.is_protected)
    torch._register_device_module("fake_xpu", device_module)  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True, unsupported_dtype=None
    )
    if not os.environ.get("ACCELKIT_PROBING"):  # faults apply to the program, not to a probe of the device
        device_module.faults.inject(_settings.faults)
    process_group.register()
    atexit.register(_finish)
    reductions.register()


_add_to_torch()
