"""The report of a run of ``accelkit bench``. This module does not import torch."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

SCHEMA = "accelkit.bench/1"


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """Repeated measurements of one quantity.

    Attributes:
        values: The samples, in the order in which they were measured, in the unit of the result.
        median: The median of the samples.
        iqr: The interquartile range of the samples, which is 0 if there is only one sample.
        count: The number of samples.
    """

    values: tuple[float, ...]
    median: float
    iqr: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Samples:
        """Return the samples and their statistics. ``values`` must not be empty."""
        low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (0.0, 0.0, 0.0)
        return cls(tuple(values), statistics.median(values), high - low, len(values))


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One measurement of the device.

    Attributes:
        name: The name, such as ``matmul.float32.1024``. Its first part is the group.
        unit: ``us`` (microseconds per call), ``GB/s`` (10^9 bytes per second), ``GFLOP/s``, ``samples/s`` or ``%``.
        is_higher_better: Whether a larger value is better.
        device: The samples of the device, or None if the device was not measured.
        host: The samples of the CPU, or None if the CPU was not measured.
        limit: The best value, in ``unit``, that is possible with the peaks measured in the same run. None if no peak applies.
        limited_by: The resource that determines the limit, such as ``memory``.
        unsupported: The reason why the device was not measured, or an empty string.
    """

    name: str
    unit: str
    is_higher_better: bool
    device: Samples | None = None
    host: Samples | None = None
    limit: float | None = None
    limited_by: str = ""
    unsupported: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """All results of a run.

    Attributes:
        name: The name of the accelerator.
        plugin: The accelerator's plugin, as ``dist==version``.
        device: The device, such as ``acme:0``.
        accelkit: The version of accelkit.
        torch: The version of torch.
        python: The version of Python.
        processor: The processor of the machine, as Python reports it.
        threads: The number of threads with which torch computed on the CPU.
        time: The time at which the run began, in seconds since the epoch.
        is_quick: Whether ``--quick`` was given.
        peaks: The largest measured rate of each resource, in bytes per second for ``memory`` and for links such as ``host to device``, and
            in FLOP per second for dtypes.
        results: The measurements, in the order in which they were made.
        device_name: The name of the device as its driver reports it, such as ``NVIDIA H100``. Empty in a report written by an older
            version of accelkit.
        schema: The name and the version of the format of the report as JSON.
    """

    name: str
    plugin: str
    device: str
    accelkit: str
    torch: str
    python: str
    processor: str
    threads: int
    time: float
    is_quick: bool
    peaks: Mapping[str, float]
    results: tuple[Result, ...]
    device_name: str = ""
    schema: str = SCHEMA
