"""AMD GPUs. A build of torch for ROCm exposes them as ``cuda`` devices.

The Linux kernel lists the GPUs in files (sysfs). This module reads these files, so it loads no library and initialises no driver.
Sources: the amdkfd driver's topology (https://docs.kernel.org/gpu/amdgpu/) and 'GPU isolation techniques'
(https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from accelkit import Availability
from accelkit_builtin.accelerators.visible_devices import visible_indices

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
KERNEL_DRIVER = Path("/dev/kfd")
INSTALL_HINT = "install a torch build for ROCm (see https://pytorch.org/get-started/locally/)"


def uuids() -> list[str]:
    """Return the UUIDs of the AMD GPUs on this machine that this process can access, in ROCm's order.

    A UUID is ``GPU-`` followed by 16 hexadecimal digits. If the kernel driver is not loaded, the list is empty. The kernel's topology also
    lists CPUs, which have no SIMD units and are skipped. In a container, GPUs that were not passed to the container cannot be read and are
    skipped too.
    """
    found = []
    for node in sorted((entry for entry in _entries() if entry.name.isdecimal()), key=lambda entry: int(entry.name)):
        try:
            properties = dict(line.split(maxsplit=1) for line in (node / "properties").read_text("ascii").splitlines() if " " in line)
            if int(properties.get("simd_count", 0)) > 0:
                found.append(f"GPU-{int(properties.get('unique_id', 0)):016x}")
        except (OSError, ValueError):
            continue
    return found


def visible(environ: Mapping[str, str]) -> list[int]:
    """Return the indices of the AMD GPUs that ROCm shows to a process whose environment variables are ``environ``.

    The indices are positions in the result of ``uuids()``, in the order in which the process sees the GPUs.

    ``ROCR_VISIBLE_DEVICES`` selects from the machine's GPUs. The selected GPUs are renumbered from 0. ``HIP_VISIBLE_DEVICES`` (or, if
    ``HIP_VISIBLE_DEVICES`` is not set, ``CUDA_VISIBLE_DEVICES``) then selects from the renumbered GPUs.
    """
    machine = uuids()
    chosen = visible_indices(environ.get("ROCR_VISIBLE_DEVICES"), machine)
    again = visible_indices(environ.get(_second_variable(environ)), [machine[index] for index in chosen])
    return [chosen[index] for index in again]


def _second_variable(environ: Mapping[str, str]) -> str:
    """Return the name of the variable that ROCm applies after ``ROCR_VISIBLE_DEVICES``.

    The returned variable may be unset. It selects from the GPUs that ``ROCR_VISIBLE_DEVICES`` has selected.
    """
    return "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"


def limiting_variable(environ: Mapping[str, str]) -> str:
    """Return the name of a variable that limits which GPUs a process sees, given its environment variables ``environ``.

    The result is the first of ``ROCR_VISIBLE_DEVICES``, ``HIP_VISIBLE_DEVICES`` and ``CUDA_VISIBLE_DEVICES`` that is set. If none is set,
    the result is ``HIP_VISIBLE_DEVICES``.
    """
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    return next((name for name in names if name in environ), "HIP_VISIBLE_DEVICES")


def probe() -> Availability:
    """Return whether this process can use AMD GPUs. Opens no device. Called only if the installed torch is a build for ROCm."""
    machine = uuids()
    if not machine:
        return Availability.absent(
            f"the installed torch was built for ROCm, but {TOPOLOGY} lists no AMD GPU",
            "on a machine with an AMD GPU, install the amdgpu driver; in a container, pass --device=/dev/kfd --device=/dev/dri",
        )
    if not KERNEL_DRIVER.exists():
        return Availability.broken(
            f"this machine has {len(machine)} AMD GPU(s), but {KERNEL_DRIVER} does not exist",
            "start the container with --device=/dev/kfd --device=/dev/dri",
        )
    if not os.access(KERNEL_DRIVER, os.R_OK | os.W_OK):
        return Availability.broken(
            f"no permission to use {KERNEL_DRIVER}", "add this user to the groups render and video, and log in again"
        )
    usable = visible(os.environ)
    if not usable:
        names = [name for name in ("ROCR_VISIBLE_DEVICES", _second_variable(os.environ)) if name in os.environ]
        settings = " and ".join(f"{name}={os.environ[name]!r}" for name in names)
        hides, hint = ("hides", "unset it, or set it to the index of a GPU") if len(names) == 1 else ("together hide", "unset them")
        return Availability.absent(f"{settings} {hides} the {len(machine)} GPU(s) of this machine", hint)
    return Availability.usable(f"{len(usable)} AMD GPU(s)")


def _entries() -> list[Path]:
    try:
        return list(TOPOLOGY.iterdir())
    except OSError:
        return []
