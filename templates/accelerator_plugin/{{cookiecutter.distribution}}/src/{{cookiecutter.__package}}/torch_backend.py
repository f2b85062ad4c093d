"""Add the device type ``{{ cookiecutter.accelerator }}`` to torch: ``import {{ cookiecutter.__package }}.torch_backend``.

The first import compiles the C++ library. The import initialises no device, so the process can still fork.
"""

from __future__ import annotations

import atexit
import contextlib

import torch
from accelkit import wait_for_torch_threads
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from {{ cookiecutter.__package }}.build import LIBRARY


def _add_to_torch() -> None:
    rename_privateuse1_backend("{{ cookiecutter.accelerator }}")
    torch.ops.load_library(str(LIBRARY.build()))  # type: ignore[no-untyped-call]
    torch.ops.{{ cookiecutter.accelerator }}.register_remaining_operators()
    from {{ cookiecutter.__package }} import device_module, process_group  # they call functions of the library

    torch._register_device_module("{{ cookiecutter.accelerator }}", device_module)  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True, unsupported_dtype=None
    )
    process_group.register()
    atexit.register(_finish)


def _finish() -> None:
    """Wait for queued work and for torch's threads before the interpreter exits, because they use Python objects."""
    from {{ cookiecutter.__package }} import device_module

    if not device_module.is_initialized():
        return
    for index in range(device_module.device_count()):
        with contextlib.suppress(RuntimeError):  # the device was lost, or belongs to another process
            device_module.synchronize(index)
    wait_for_torch_threads()


_add_to_torch()
