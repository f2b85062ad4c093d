"""The tracker ``csv``."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from accelkit.atomic_file import atomic_file
from accelkit.tracking.metrics_file import MetricsFileTracker
from accelkit.tracking.run_files import set_aside
from accelkit.tracking.tracker import Scalar

STEP = "step"


class CSV(MetricsFileTracker):
    """A tracker that writes two files: ``metrics.csv``, with one row for each call to ``rt.log``, and ``hyperparameters.json``.

    The columns are ``step`` and the names of the values, in the order in which they first appear. If a new name appears, the file is
    rewritten with a column for this name. If a call does not log a value for a column, the cell is empty. Each row is passed to the
    operating system immediately, so the row survives the death of the process.

    If a program continues from a checkpoint, rows that were written after the checkpoint are removed. The file therefore has no duplicate
    rows, and programs that read the file do not have to handle repeated steps. If a new run begins in a folder that has a
    ``metrics.csv``, that file is renamed to ``metrics.1.csv``.

    Args:
        folder: The folder. None means the folder of the run, ``runs/<date>_<time>``.

    Attributes:
        folder: The folder. If the argument ``folder`` is None, this attribute is None until ``open`` is called.
    """

    name = "csv"
    file_name = "metrics.csv"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder)
        self._columns: list[str] = []
        self._num_rows = 0

    def open(self, state: Mapping[str, Any] | None) -> None:
        position = self.position(state)
        if position is None:
            set_aside(self._path)
        self._rewrite(_read(self._path)[: position["rows"]] if position else [])

    def log(self, values: Mapping[str, Scalar], step: int) -> None:
        assert self._file is not None
        if not values.keys() <= set(self._columns):
            rows = _read(self._path)
            self._file.close()
            self._rewrite(rows, values)
        self._writer(self._file).writerow({STEP: step, **values})
        self._num_rows += 1

    def state(self) -> dict[str, Any]:
        return super().state() | {"rows": self._num_rows}

    def _writer(self, file: TextIO) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._columns, lineterminator="\n")

    def _rewrite(self, rows: list[dict[str, str]], further: Iterable[str] = ()) -> None:
        """Replace the file with these rows, and open it for appending.

        The columns are ``step``, the names in the rows and the names in ``further``, in the order in which they first appear.
        """
        self._columns = list(dict.fromkeys([STEP, *(name for row in rows for name in row), *further]))
        self._num_rows = len(rows)
        with atomic_file(self._path, is_durable=False) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = self._writer(file)
            writer.writeheader()
            writer.writerows(rows)
        self._file = self._path.open("a", encoding="utf-8", newline="", buffering=1)


def _read(path: Path) -> list[dict[str, str]]:
    """Return the rows of the file as dicts, without the empty cells. The list is empty if the file does not exist.

    The last row is omitted if it does not end with a line break, because a killed process may have left it incomplete.
    """
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        lines = file.readlines()
    if lines and not lines[-1].endswith("\n"):
        del lines[-1]
    return [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(lines)]
