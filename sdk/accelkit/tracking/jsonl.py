"""The tracker ``jsonl``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from accelkit.tracking.metrics_file import MetricsFileTracker
from accelkit.tracking.run_files import set_aside
from accelkit.tracking.tracker import Scalar


class JSONLines(MetricsFileTracker):
    """A tracker that writes two files: ``metrics.jsonl`` and ``hyperparameters.json``.

    ``metrics.jsonl`` has one JSON object for each call to ``rt.log``. Each line has ``step`` and the values. Infinities and NaN are written
    as ``Infinity`` and ``NaN``, as Python's ``json`` writes and reads them. Each line is passed to the operating system immediately, so the
    line survives the death of the process.

    If a program continues from a checkpoint, lines that were written after the checkpoint are removed. The file therefore has no duplicate
    lines, and programs that read the file do not have to handle repeated steps. If a new run begins in a folder that has a
    ``metrics.jsonl``, that file is renamed to ``metrics.1.jsonl``. If this name is taken, the next free number is used.

    Args:
        folder: The folder. None means the folder of the run, ``runs/<date>_<time>``.

    Attributes:
        folder: The folder. If the argument ``folder`` is None, this attribute is None until ``open`` is called.
    """

    name = "jsonl"
    file_name = "metrics.jsonl"

    def open(self, state: Mapping[str, Any] | None) -> None:
        position = self.position(state)
        if position is None:
            set_aside(self._path)
        elif self._path.exists() and self._path.stat().st_size > position["bytes"]:
            os.truncate(self._path, position["bytes"])
        self._file = self._path.open("a", encoding="utf-8", newline="", buffering=1)

    def log(self, values: Mapping[str, Scalar], step: int) -> None:
        assert self._file is not None
        self._file.write(json.dumps({"step": step, **values}) + "\n")

    def state(self) -> dict[str, Any]:
        return super().state() | {"bytes": self._path.stat().st_size}
