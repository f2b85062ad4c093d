"""The tracker ``jsonl``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from accelkit.tracking.run_files import set_aside, write_hyperparameters
from accelkit.tracking.tracker import FolderTracker, Outcome, Scalar


class JSONLines(FolderTracker):
    """Writes ``metrics.jsonl``, with one JSON object for each call of ``rt.log``, and ``hyperparameters.json``.

    Each line has ``step`` and the values. Infinities and NaN are written as ``Infinity`` and ``NaN``, as Python's ``json`` writes and
    reads them. Each line is passed to the operating system at once, so it survives the death of the process.

    If a program continues from a checkpoint, lines that were written after the checkpoint are removed. So each call is in the file once,
    and readers need no rule for repeated steps. If a new run begins in a folder that has a ``metrics.jsonl``, that file is renamed to
    ``metrics.1.jsonl``.

    Args:
        folder: The folder. None for the folder of the run, ``runs/<date>_<time>``.

    Attributes:
        folder: The folder, or None before the first ``rt.log``.
    """

    name = "jsonl"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder)
        self._hyperparameters: dict[str, Any] = {}
        self._file: TextIO | None = None

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

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self._hyperparameters |= values
        write_hyperparameters(self._path.parent, self._hyperparameters)

    def close(self, outcome: Outcome) -> None:
        if self._file is not None:
            self._file.close()

    def state(self) -> dict[str, Any]:
        return super().state() | {"bytes": self._path.stat().st_size}

    @property
    def _path(self) -> Path:
        assert self.folder is not None
        return self.folder / "metrics.jsonl"
