"""Import and probe a plugin in a new process, and report how the import and the probe changed the process."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from accelkit import PluginRecord, child_processes
from accelkit.discovery import subprocess_env

ROOT = Path(__file__).parents[1]
"""The folder that contains this package."""
_SECONDS = 60.0
_STATUS = 7
_ANSWER = "accelkit-answer "


@functools.cache
def in_child(record: PluginRecord, *steps: str) -> dict[str, Any]:
    """Import a plugin in a new process, run further steps there, and return what was observed in that process. The result is cached.

    Args:
        record: The plugin.
        steps: Any of ``import`` (always run, even if not given), ``probe`` (ignored unless the plugin is an accelerator), ``fork`` (only
            for an accelerator) and ``footprint``.

    Returns:
        A dictionary. ``seconds`` is the duration of the import and the probe. ``imported_torch`` says whether they imported torch. It is
        always False with the step ``footprint``, which imports torch first. This step adds ``changes``, the changes to the process, and
        ``initialized``, whether the driver is initialised. The step ``fork`` adds ``fork``, the exit status of a forked process that called
        ``probe``.

    Raises:
        AssertionError: If the process does not end within 60 s, or if it ends without an answer. In the second case, the message contains
            the end of the process's output.
    """
    return ask(__name__, about(record) | {"steps": steps}, _SECONDS)


def about(record: PluginRecord) -> dict[str, Any]:
    """Return the part of a request that tells a new process how to find and load the plugin."""
    return {"sys_path": subprocess_env.search_path(), "record": as_request(record)}


def as_request(record: PluginRecord) -> dict[str, Any]:
    """Return the record of a plugin in the form in which it is sent to a child process."""
    return dataclasses.asdict(record) | {"registered_class": None}


def ask(module: str, request: Mapping[str, Any], seconds: float, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a module in a new process, send it a request, and return its answer.

    The module reads the request as JSON from standard input. Its answer is the last dictionary that it passes to the function ``answer``.

    Args:
        module: The name of the module.
        request: The request.
        seconds: The time limit in seconds.
        variables: Variables that are added to the environment of the new process.

    Raises:
        AssertionError: If the process does not end within the time limit, or if it ends without an answer. In the second case, the message
            contains the end of the process's output.
    """
    run = _run(module, request, seconds, variables or {})
    lines = [line for line in run.stdout.splitlines() if line.startswith(_ANSWER)]
    assert lines, f"a new process exited with status {run.returncode} before it answered: {(run.stderr or run.stdout)[-600:]}"
    found: dict[str, Any] = json.loads(lines[-1].removeprefix(_ANSWER))
    return found


def check_exit(record: PluginRecord, seconds: float) -> None:
    """Check that a new process ends with exit status 7.

    The process calls ``sys.exit(7)`` right after a backward pass on the device.

    Raises:
        AssertionError: If the process does not end within ``seconds``, or ends with a different status. If the status is different, the
            message contains the end of the process's output.
    """
    run = _run(__name__, about(record) | {"steps": ["exit"]}, seconds, {})
    output = (run.stderr or run.stdout)[-600:]
    assert run.returncode == _STATUS, f"sys.exit({_STATUS}) after a backward pass gave the exit status {run.returncode}: {output}"


def _run(module: str, request: Mapping[str, Any], seconds: float, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return child_processes.run(
            subprocess_env.command(module),
            input=json.dumps(request),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=seconds,
            env={**subprocess_env.environment(ROOT), **variables},
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"a new process did not end within {seconds:g} s") from error


def received() -> tuple[dict[str, Any], PluginRecord]:
    """Return the request that ``ask`` sent, and the record of the plugin that it names. This function runs in the child process.

    It sets the search path for modules, so the plugin can be imported afterwards.
    """
    request: dict[str, Any] = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    return request, PluginRecord(**request["record"])


def answer(found: Mapping[str, Any]) -> None:
    """Print the answer that ``ask`` reads. This function runs in the child process.

    The answer is on its own line, even if the plugin has printed an unfinished line.
    """
    sys.stdout.write(f"\n{_ANSWER}{json.dumps(found)}\n")


def main() -> None:
    """Handle a request from ``in_child`` or ``check_exit``. This function runs in the child process."""
    request, record = received()
    steps = request["steps"]
    found: dict[str, Any] = {"seconds": 0.0}
    from accelkit.discovery import loading
    from accelkit.discovery.import_side_effects import Footprint

    if "footprint" in steps:
        import torch  # noqa: F401 # so that changes which the plugin makes to torch are detected
    before, modules, start = Footprint(), set(sys.modules), time.perf_counter()
    cls: Any = loading.load_class(record)
    if "exit" in steps:
        _exit_after_backward(record, cls)
    if "probe" in steps and record.kind == "accelerator":
        cls.probe()
    found["seconds"] = time.perf_counter() - start
    found["imported_torch"] = "torch" in set(sys.modules) - modules
    if "footprint" in steps:
        found["changes"] = before.changes()
        found["initialized"] = _is_driver_up(getattr(cls, "device_type", ""))
    if "fork" in steps:
        child = os.fork()
        if child == 0:
            os._exit(0 if cls.probe() is not None else 1)
        found["fork"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answer(found)


def _exit_after_backward(record: PluginRecord, cls: Any) -> NoReturn:
    """Run a backward pass on the device, and exit right after it.

    If the operating system allows it, the process first restricts itself to one core. Device threads with unfinished work are then likely
    to run during shutdown.
    """
    import torch

    from accelkit.discovery import loading
    from accelkit_conformance.subject import Subject

    instance = loading.instantiate(cls, record)
    instance.load()
    subject = Subject(record, cls)
    subject.use(instance)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    x = torch.rand(4, 4, device=subject.device, requires_grad=True)
    (x @ x).sum().backward()  # type: ignore[no-untyped-call]
    sys.exit(_STATUS)


def _is_driver_up(device_type: str) -> bool:
    """Return whether ``torch.<device_type>`` reports that its driver is initialised.

    The result is False if the device is the CPU, if torch has no module of this name, or if the module has no ``is_initialized``.
    """
    module = getattr(sys.modules["torch"], device_type, None) if device_type else None
    asked = getattr(module, "is_initialized", None)
    return bool(asked()) if callable(asked) and device_type != "cpu" else False


if __name__ == "__main__":
    main()
