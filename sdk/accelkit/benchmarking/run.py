"""Measurement of an accelerator's speed in a child process, because a measurement may crash or hang. The parent does not import torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from accelkit.benchmarking.report import Report
from accelkit.discovery.plugin_process import Message, PluginProcess
from accelkit.errors import UsageError
from accelkit.types import PluginRecord

_WORKER = "accelkit.benchmarking.worker"
_SECONDS = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Progress(Message):
    """A message from the child process.

    The last message contains the report. Every other message contains the name and the position of the next measurement, and the number of
    measurements.
    """

    measuring: str = ""
    number: int = 0
    count: int = 0
    report: Report | None = None


def measure(
    record: PluginRecord,
    *,
    is_quick: bool,
    select: str,
    report_progress: Callable[[str, int, int], None],
    ranks: int = 2,
    seconds: float = _SECONDS,
) -> Report:
    """Measure the speed of an accelerator, and return the report. Initialises the driver, in child processes.

    Most measurements use only the accelerator's first device. Collectives, and copies from one device to another, use several devices.

    Args:
        record: The accelerator's record.
        is_quick: Whether to measure small sizes for a short time.
        select: A shell-style wildcard pattern. Measurements whose names do not match the pattern are left out.
        report_progress: Called before each measurement with its name, its position (from 1) and the number of measurements.
        ranks: The number of processes in the measurements of collectives. Each process uses one device.
        seconds: The time limit of each measurement, in seconds.

    Raises:
        BrokenPluginError: If the plugin fails or crashes, takes too long to load, or takes longer than ``seconds`` for a measurement.
        UsageError: If ``select`` selects no measurement.
    """
    with PluginProcess(
        _WORKER,
        _Progress,
        record,
        {"is_quick": is_quick, "select": select, "ranks": ranks, "seconds": seconds},
        failed=f"the speed of {record.name} cannot be measured",
        hint=f"report it to the vendor; to run only measurements that work, use accelkit bench {record.name} --select GLOB",
        errors=(UsageError,),
    ) as process:  # not a probe: the child process uses the device as an ordinary program would
        message = process.receive_first()
        while message.report is None:
            report_progress(message.measuring, message.number, message.count)
            message = process.receive(seconds, f"in the measurement {message.measuring}")
        return message.report
