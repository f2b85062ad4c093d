"""What every child process in which plugins run is started with, and how its end is told."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def command(module: str) -> list[str]:
    """The command that runs this module of ours. With ``-P`` it does not import what lies in the current directory, as a ``json.py``."""
    return [sys.executable, "-P", "-m", module]


def search_path() -> list[str]:
    """``sys.path``, absolute: the child finds what this process finds, wherever it is started."""
    return [os.path.abspath(entry) for entry in sys.path]


def environment(root: Path, **variables: str) -> dict[str, str]:
    """This process's variables and ``variables``; modules under ``root`` are found, and torch imports no vendor's package by itself."""
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} | variables


def signal_name(code: int) -> str:
    """Of the signal that ended a process, from its negative return code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
