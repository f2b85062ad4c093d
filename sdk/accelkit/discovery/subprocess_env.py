"""Command, search path and environment of the child processes in which plugins run, and names of the signals that end these processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def command(module: str) -> list[str]:
    """Return the command that runs a module of accelkit.

    The command includes ``-P``, so that the child process does not import files from the current directory, such as a ``json.py``.
    """
    return [sys.executable, "-P", "-m", module]


def search_path() -> list[str]:
    """Return ``sys.path`` with absolute entries, so that a child process finds the same modules wherever it is started."""
    return [os.path.abspath(entry) for entry in sys.path]


def environment(root: Path, **variables: str) -> dict[str, str]:
    """Return the environment of this process, updated with ``variables``.

    In a child process with this environment, modules under ``root`` can be imported, and ``import torch`` does not autoload the backends of
    out-of-tree devices.
    """
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} | variables


def signal_name(code: int) -> str:
    """Return the name of the signal that ended a process, such as ``SIGSEGV``. ``code`` is the process's return code, which is negative.

    If Python has no name for the signal, the result has the form ``signal 35``.
    """
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
