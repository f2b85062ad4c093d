"""What a job runs on, and how many processes a machine gets: settled before any process is started, without initialising a driver."""

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
    """An accelerator and its devices on this machine: one process each.

    Attributes:
        accelerator: Loaded; no driver initialised.
        name: The accelerator as the processes are told.
        device_indices: The numbers that the user wrote, in that order: process ``i`` of this machine uses the ``i``-th.
    """

    accelerator: Accelerator
    name: str
    device_indices: tuple[int, ...]

    @property
    def spelled(self) -> str:
        """The devices as ``devices=`` reads them."""
        return spell_devices(self.device_indices)

    @property
    def environ(self) -> dict[str, str]:
        """The variables that make a Runtime choose the same."""
        return {ACCELERATOR_VARIABLE: self.name, DEVICES_VARIABLE: self.spelled}


def choose(accelerator: str | Accelerator | None = None, devices: Devices | None = None) -> Choice:
    """Select, load and count. Imports torch if the accelerator needs it for that; initialises no driver.

    Args:
        accelerator: As in ``select``.
        devices: As in ``select``; if nobody says, all there are.

    Raises:
        AccelkitError: As ``select``.
        DevicesError: If there are no such devices.
    """
    selection = select(accelerator, devices=devices)
    chosen = selection.accelerator
    with loading.plugin_errors(chosen.plugin, f"loading the accelerator {chosen.name}"):
        chosen.load()
    with loading.plugin_errors(chosen.plugin, f"counting the devices of {chosen.name}"):
        wanted = chosen.parse_devices(selection.devices if selection.devices is not None else AUTO)
        indices = tuple(checked(chosen, "parse_devices", wanted))
    asked = selection.decision.requested
    return Choice(chosen, asked if ":" in asked and asked not in device_table.aliases() else selection.decision.chosen, indices)


def threads_each(num_processes: int) -> int | None:
    """How many threads torch should use in each process of this machine: its cores, shared. None where nothing has to be said.

    torch takes every core in every process, and ``torchrun`` one: too many are slow, and one leaves cores idle.
    """
    if num_processes == 1 or os.environ.get(THREADS_VARIABLE):
        return None
    return max(1, cores() // num_processes)


def cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)
