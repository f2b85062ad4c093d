"""Choose the devices of a job and the number of processes per machine, before any process starts and without initialising a driver."""

from __future__ import annotations

import dataclasses
import os

import psutil

from accelkit.discovery import device_table, loading
from accelkit.plugin_calls import checked
from accelkit.selection import ACCELERATOR_VARIABLE, AUTO, DEVICES_VARIABLE, Devices, select
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.device_parsing import spell_devices

THREADS_VARIABLE = "OMP_NUM_THREADS"


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """An accelerator, and the devices of this machine that the job uses. Each device is used by one process.

    Attributes:
        accelerator: The loaded accelerator, whose driver is not initialised.
        name: The accelerator's name, as it is passed to the processes.
        device_indices: The indices of the devices. The process with local rank ``i`` uses the device ``device_indices[i]``.
    """

    accelerator: Accelerator
    name: str
    device_indices: tuple[int, ...]

    @property
    def spelled(self) -> str:
        """The devices in the format that ``devices=`` accepts."""
        return spell_devices(self.device_indices)

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that make a Runtime choose this accelerator and these devices."""
        return {ACCELERATOR_VARIABLE: self.name, DEVICES_VARIABLE: self.spelled}


def choose(accelerator: str | Accelerator | None = None, devices: Devices | None = None) -> Choice:
    """Select and load an accelerator, and return it with its devices.

    This imports torch if the accelerator needs it to count devices. It does not initialise a driver.

    Args:
        accelerator: The accelerator, as in ``select``.
        devices: The devices, as in ``select``. If neither this argument nor the environment specifies devices, all devices are used.

    Raises:
        AccelkitError: If no accelerator can be selected (see ``select``), or if the selected one cannot be loaded or cannot count its
            devices.
        DevicesError: If ``devices``, or the value of ACCELKIT_DEVICES, is invalid or names a device that does not exist.
    """
    selection = select(accelerator, devices=devices)
    chosen = selection.accelerator
    with loading.plugin_errors(chosen.plugin, f"loading the accelerator {chosen.name}"):
        chosen.load()
    with loading.plugin_errors(chosen.plugin, f"counting the devices of {chosen.name}"):
        wanted = chosen.parse_devices(selection.devices if selection.devices is not None else AUTO)
        indices = tuple(checked(chosen, "parse_devices", wanted))
    requested = selection.decision.requested
    return Choice(chosen, requested if ":" in requested and requested not in device_table.aliases() else selection.decision.chosen, indices)


def threads_each(num_processes: int) -> int | None:
    """Return the number of threads that torch should use in each process: an equal share of the cores (see ``cores``), at least 1.

    By default, torch uses all cores in every process, which is slow. ``torchrun`` sets one thread per process, which leaves cores idle.

    Args:
        num_processes: The number of processes on this machine.

    Returns:
        The number of threads. None if there is only one process, or if the user has set OMP_NUM_THREADS: nothing should then be set.
    """
    if num_processes == 1 or os.environ.get(THREADS_VARIABLE):
        return None
    return max(1, cores() // num_processes)


def cores() -> int:
    """Return the number of logical cores that this process may use, or the machine's number of physical cores if that is lower."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)
