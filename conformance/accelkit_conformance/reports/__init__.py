"""The forms of a report: each is made of the JSON report and nothing else (a bundle also holds the logs)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelkit_conformance.report import Report, write

Writer = Callable[[Report, Path, Path], None]


def _writer(form: str) -> Writer:
    def make(report: Report, path: Path, folder: Path) -> None:
        module: Any = importlib.import_module(f"accelkit_conformance.reports.{form}")
        module.write(report, path, folder)

    return make


WRITERS: dict[str, Writer] = {
    "json": lambda report, path, folder: write(report, path),
    **{form: _writer(form) for form in ("junit", "html", "badge", "bundle")},
}
"""By form: writes a report to a path; ``folder`` holds the run's logs."""
