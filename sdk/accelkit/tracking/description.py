"""Description of a job and its settings, for experiment trackers."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from typing import Any

import accelkit
from accelkit.job_types import Decision, RuntimeState


def describe(decision: Decision, state: RuntimeState) -> dict[str, Any]:
    """Return the settings of the job, the reason for the choice of the accelerator, and the versions of accelkit, torch and Python.

    The settings include the device, the precision, the strategy and the number of processes.
    """
    rank_dependent = ("process_index", "local_process_index")
    settings = {name: value for name, value in dataclasses.asdict(state).items() if name not in rank_dependent}
    return settings | {
        "requested": decision.requested,
        "source": decision.source,
        "decision": str(decision),
        "versions": {
            "accelkit": accelkit.__version__,
            "torch": importlib.metadata.version("torch"),
            "python": platform.python_version(),
        },
    }
