"""Base class of trackers that write the logged values to one file, and the hyperparameters to another file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TextIO

from accelkit.tracking.run_files import write_hyperparameters
from accelkit.tracking.tracker import FolderTracker, Outcome


class MetricsFileTracker(FolderTracker):
    """Base class of trackers that write two files in one folder: a file with the logged values, and ``hyperparameters.json``.

    The method ``open`` of a subclass must open the file for the logged values, and assign the file object to ``_file``. ``close`` closes
    the file.

    Attributes:
        file_name: The name of the file for the logged values. A subclass must set this attribute.
    """

    file_name: ClassVar[str]

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder)
        self._hyperparameters: dict[str, Any] = {}
        self._file: TextIO | None = None

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self._hyperparameters |= values
        write_hyperparameters(self._path.parent, self._hyperparameters)

    def close(self, outcome: Outcome) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def _path(self) -> Path:
        assert self.folder is not None
        return self.folder / self.file_name
