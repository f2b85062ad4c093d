"""Doing things with a plugin in a fresh process, and seeing what that changed there."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from accelkit import PluginRecord

_SECONDS = 60


def in_child(record: PluginRecord, *steps: str) -> dict[str, Any]:
    """Take these steps in a fresh process: ``import``, ``probe``, ``torch``, ``fork``, ``load``, ``footprint``. What was seen.

    Raises:
        AssertionError: If the process ends before it answers; with the end of what it printed.
    """
    request = {"sys_path": sys.path, "record": dataclasses.asdict(record) | {"registered_class": None}, "steps": steps}
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        run = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            env=environ,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{', '.join(steps)} in a fresh process did not end within {_SECONDS} s") from error
    lines = [line for line in run.stdout.splitlines() if line.startswith('{"seconds"')]
    assert lines, f"{', '.join(steps)} in a fresh process ended it with {run.returncode}: {(run.stderr or run.stdout)[-600:]}"
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> None:
    """The child's side."""
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    record, steps = PluginRecord(**request["record"]), request["steps"]
    found: dict[str, Any] = {"seconds": 0.0}
    from accelkit.discovery import loading
    from accelkit.discovery.footprint import Footprint

    if "footprint" in steps:
        import torch  # noqa: F401 # so that what the plugin replaces in it is seen
    before, modules, start = Footprint(), set(sys.modules), time.perf_counter()
    cls: Any = loading.load_class(record)
    if "probe" in steps:
        cls.probe()
    found["seconds"] = time.perf_counter() - start
    found["imported_torch"] = "torch" in set(sys.modules) - modules
    if "footprint" in steps:
        found["changes"] = before.changes()
        found["initialized"] = _is_driver_up(cls.device_type)
    if "fork" in steps:
        child = os.fork()
        if child == 0:
            os._exit(0 if cls.probe() is not None else 1)
        found["fork"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def _is_driver_up(device_type: str) -> bool:
    """Whether the device's module says that its driver is initialised; one that is not there is not."""
    module = getattr(sys.modules["torch"], device_type, None)
    asked = getattr(module, "is_initialized", None)
    return bool(asked()) if callable(asked) and device_type != "cpu" else False


if __name__ == "__main__":
    main()
