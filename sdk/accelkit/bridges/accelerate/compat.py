"""The versions of Accelerate that the bridge knows, and the attributes of Accelerate's shared state that the bridge sets."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from packaging.version import Version

from accelkit.errors import UnavailableError, UnsupportedError

OLDEST, NEWEST = "1.10.0", "1.15.0"
_STATE = {
    "_cpu",
    "_mixed_precision",
    "_shared_state",
    "backend",
    "debug",
    "device",
    "distributed_type",
    "fork_launched",
    "local_process_index",
    "num_processes",
    "process_index",
}
"""The attributes of PartialState that the bridge sets."""


def import_accelerate() -> ModuleType:
    """Import and return the package accelerate.

    Raises:
        UnavailableError: If accelerate is not installed.
        UnsupportedError: If the bridge does not know the version of accelerate, or if Accelerate's shared state does not have exactly the
            attributes that the bridge sets.
    """
    hint = "pip install 'accelkit[accelerate]'"
    if importlib.util.find_spec("accelerate") is None:
        raise UnavailableError("the bridge to Accelerate needs the package accelerate", why="it is not installed", hint=hint)
    accelerate = importlib.import_module("accelerate")
    check_version(accelerate.__version__)
    known = set(importlib.import_module("accelerate.state").PartialState._known_attrs)
    if known != _STATE:
        raise UnsupportedError(
            f"the bridge does not support the shared state of accelerate {accelerate.__version__}",
            why=f"these entries differ: {', '.join(sorted(known ^ _STATE))}",
            hint=hint,
        )
    return accelerate


def check_version(version: str) -> None:
    """Check that the bridge knows this version of Accelerate. Later patch releases of the newest known version also count as known.

    Raises:
        UnsupportedError: If the bridge does not know the version.
    """
    found, oldest, newest = Version(version), Version(OLDEST), Version(NEWEST)
    if found < oldest or found.release[:2] > newest.release[:2]:
        raise UnsupportedError(
            f"this version of accelkit does not support accelerate {version}",
            why=f"the bridge replaces parts of Accelerate, and is tested with {OLDEST} to {NEWEST}",
            hint="install a supported version with pip install 'accelkit[accelerate]'",
        )
