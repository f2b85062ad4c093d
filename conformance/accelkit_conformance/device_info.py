"""Descriptions of the device and of the software versions, for a report."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

from accelkit.device_name import device_name

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def describe(subject: Subject) -> dict[str, Any]:
    """Return a description of the devices under test, as this process sees them.

    It contains the device type, this process's device, the number and the names of the devices, the capabilities, the process-group
    backend ("" if there is none), and whether the devices are simulated. It is empty if the plugin under test is not an accelerator.
    """
    accelerator = subject.accelerator
    if subject.record.kind != "accelerator":
        return {}
    return {
        "device_type": accelerator.device_type,
        "device": str(subject.device),
        "device_count": len(subject.devices),
        "device_names": [device_name(device) for device in subject.devices],
        "capabilities": dict(subject.capabilities),
        "is_simulated": bool(accelerator.is_simulated),
        "process_group_backend": accelerator.process_group_backend or "",
    }


def versions() -> dict[str, str]:
    """Return the versions of the software that can affect the results of tests, such as torch and the operating system.

    The returned dictionary also contains the name of the processor and the number of logical cores. This function reads metadata. It
    imports neither torch nor a plugin.
    """
    from accelkit import __version__
    from accelkit.discovery.metadata import installed_version

    found = {"accelkit": __version__, "python": platform.python_version(), "platform": platform.platform()}
    packages = ("torch", "numpy", "scipy", "expecttest", "safetensors")
    found |= {name: version for name in packages if (version := installed_version(name))}
    return found | {"processor": platform.processor() or platform.machine(), "logical_cores": str(os.cpu_count())}
