"""Statistics of devices, read repeatedly in a child process, so that a plugin that crashes or hangs does not affect this process."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping

from accelkit.discovery import probing
from accelkit.discovery.plugin_process import Message, PluginProcess
from accelkit.errors import DevicesError
from accelkit.types import PluginRecord

_WORKER = "accelkit.monitoring.worker"


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The statistics of the devices at one point in time.

    Attributes:
        time: Seconds since the epoch.
        stats: The statistics of each device. The keys are names of devices, such as ``acme:0``. The name of each statistic contains its
            unit, as in ``board.power.watts``.
    """

    time: float
    stats: dict[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer(Message):
    """A message from the child process: the names of the devices, or their statistics."""

    devices: tuple[str, ...] = ()
    stats: tuple[Mapping[str, float], ...] = ()


class Monitor:
    """A child process that reads the statistics of devices whenever ``sample`` is called. The child may initialise the driver.

    Args:
        record: The record of the accelerator's plugin, such as one from ``accelkit.plugins()``.
        devices: The devices, as in ``Runtime(devices=)``.

    Use it as a context manager. Entering the context raises ``BrokenPluginError`` if the plugin cannot be loaded, and ``DevicesError`` if
    the devices do not exist.
    """

    def __init__(self, record: PluginRecord, devices: str = "-1") -> None:
        failed = f"the statistics of {record.name} cannot be read"
        environ = {probing.INSIDE_A_PROBE: "1"}
        self._process = PluginProcess(
            _WORKER, _Answer, record, {"devices": devices}, failed=failed, errors=(DevicesError,), environ=environ
        )
        self.devices: tuple[str, ...] = ()

    def __enter__(self) -> Monitor:
        with contextlib.ExitStack() as stack:
            self.devices = stack.enter_context(self._process).receive_first().devices
            stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.__exit__(*exc_info)

    def sample(self) -> Sample:
        """Return the statistics of the devices.

        Raises:
            BrokenPluginError: If the plugin fails, crashes, or takes longer than ``ACCELKIT_PROBE_TIMEOUT``.
        """
        self._process.send()
        answer = self._process.receive(probing.time_limit("probe"), "in get_device_stats()", "ACCELKIT_PROBE_TIMEOUT")
        return Sample(time.time(), dict(zip(self.devices, answer.stats, strict=True)))
