"""The formats of a report.

Each format is generated from the JSON report alone, except the bundle, which also contains the logs and accelkit's environment variables.
"""

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
"""The writer of each format. It is called with the report, the path to write to, and the folder with the logs of the run."""
