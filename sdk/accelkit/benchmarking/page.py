"""The report of ``accelkit bench`` as one page of text."""

from __future__ import annotations

import dataclasses

from accelkit.benchmarking.report import Report, Result, Samples
from accelkit.errors import printable
from accelkit.text_table import aligned, number

_COLUMNS = ("MEASUREMENT", "UNIT", "DEVICE", "SPREAD", "SAMPLES", "CPU", "DEVICE/CPU", "LIMIT", "OF LIMIT", "LIMITED BY")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The row of one measurement in the table of a report. Each attribute is the text of a cell; a cell without a value is empty."""

    measurement: str
    unit: str
    device: str
    spread: str
    samples: str
    host: str
    ratio: str
    limit: str
    share: str
    limited_by: str


def lines(report: Report) -> list[str]:
    """Return the lines of the page: a title, a table of measurements, and a line for each measurement that the device does not support."""
    title = f"{report.name} ({report.plugin}) on {report.device}, torch {report.torch}, {report.threads} threads on the CPU"
    rows = [dataclasses.astuple(row(result)) for result in report.results if result.device is not None]
    table = aligned([_COLUMNS, *rows], has_numbers=True) if rows else []
    lacking = [f"not supported: {result.name}: {result.unsupported}" for result in report.results if result.device is None]
    return [printable(line) for line in [title, *table, *lacking]]


def row(result: Result) -> Row:
    """Return the row of a result that was measured."""
    device, host, limit = result.device, result.host, result.limit
    assert device is not None
    return Row(
        result.name,
        result.unit,
        number(device.median),
        _spread(device),
        str(device.count),
        "" if host is None else number(host.median),
        "" if host is None or not host.median else f"{_ratio(result, device, host):.2f}x",
        "" if limit is None else number(limit),
        "" if not limit else f"{device.median / limit:.0%}",
        result.limited_by,
    )


def _ratio(result: Result, device: Samples, host: Samples) -> float:
    """Return the speed of the device divided by the speed of the CPU."""
    return device.median / host.median if result.is_higher_better else host.median / device.median


def _spread(samples: Samples) -> str:
    return f"{samples.iqr / abs(samples.median):.0%}" if samples.median else number(samples.iqr)
