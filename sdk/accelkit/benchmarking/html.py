"""The report of ``accelkit bench`` as one self-contained HTML page."""

from __future__ import annotations

import time
from pathlib import Path

from accelkit import html_page
from accelkit.benchmarking import plot
from accelkit.benchmarking.case import BYTES
from accelkit.benchmarking.page import row
from accelkit.benchmarking.report import Report

_PLOTS = {
    "copy": ("Copies", "size of the copy"),
    "matmul": ("Matmul", "rows and columns of the square matrices"),
    "collective": ("Collectives", "size of the whole tensor"),
    "reduction": ("Reductions", "elements (float32)"),
}


def text(report: Report) -> str:
    """Return the report as an HTML page, which needs no other file and no network access."""
    measured = [(result, row(result)) for result in report.results if result.device is not None]
    shares = [result.device.median / result.limit for result, _ in measured if result.device and result.limit]
    plots = [(*titles, plot.by_size(report.results, group)) for group, titles in _PLOTS.items()]
    return html_page.render(
        Path(__file__).parent,
        "bench.html.j2",
        report=report,
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.time)),
        peaks=[(name, rate / 1e9, "GB/s" if name in BYTES else "GFLOP/s") for name, rate in report.peaks.items()],
        measured=measured,
        lacking=[result for result in report.results if result.device is None],
        scale=max([1.0, *shares]),
        plots=[one for one in plots if one[-1] is not None],
        geometry=plot,
    )
