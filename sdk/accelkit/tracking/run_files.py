"""Files of a run: the folder of a new run, files that an earlier run left, and the file with the hyperparameters."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelkit.atomic_file import atomic_file

ROOT = Path("runs")
HYPERPARAMETERS = "hyperparameters.json"


def new_run_folder() -> Path:
    """Create a folder ``runs/<date>_<time>``, and return its path relative to the current directory.

    If a folder of this name exists already, the name of the new folder ends in ``_1``, or in the next free number.
    """
    ROOT.mkdir(exist_ok=True)
    name = time.strftime("%Y-%m-%d_%H-%M-%S")
    for number in itertools.count():
        folder = ROOT / (f"{name}_{number}" if number else name)
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable: the numbers do not end")


def set_aside(file: Path) -> None:
    """Rename ``file`` if it exists, so that a new run does not overwrite the file of an earlier run.

    ``metrics.csv`` becomes ``metrics.1.csv``. If this name is taken, the next free number is used.
    """
    if not file.exists():
        return
    names = (file.with_name(f"{file.stem}.{number}{file.suffix}") for number in itertools.count(1))
    file.rename(next(name for name in names if not name.exists()))


def write_hyperparameters(folder: Path, values: Mapping[str, Any]) -> None:
    """Write hyperparameters to ``hyperparameters.json`` in ``folder``. An existing file is replaced.

    Values and dict keys that the module ``json`` does not support are converted with ``str``.
    """
    with atomic_file(folder / HYPERPARAMETERS, is_durable=False) as file:
        file.write_text(json.dumps(_with_json_keys(values), indent=2, default=str) + "\n", "utf-8")


def _with_json_keys(value: Any) -> Any:
    """Return a copy of nested dicts, lists and tuples in which the module ``json`` supports every key.

    Keys that ``json`` does not support are converted with ``str``. Tuples become lists.
    """
    if isinstance(value, dict):
        return {key if isinstance(key, str | int | float | None) else str(key): _with_json_keys(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_json_keys(one) for one in value]
    return value
