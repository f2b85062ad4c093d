"""A run of the measurements in a child process, which may crash or hang. This process does not import torch."""

from __future__ import annotations

import dataclasses
import json
import queue
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from accelkit import child_processes, untrusted_json
from accelkit.benchmarking.report import Report
from accelkit.discovery import probing, subprocess_env
from accelkit.errors import AccelkitError, BrokenPluginError, UsageError
from accelkit.types import PluginRecord

_WORKER = "accelkit.benchmarking.worker"
_SECONDS = 300.0
_ERRORS: dict[str, type[AccelkitError]] = {cls.__name__: cls for cls in (BrokenPluginError, UsageError)}


@dataclasses.dataclass(frozen=True, slots=True)
class _Message:
    """A message from the child process: the next measurement, the report, or the parts of an error."""

    measuring: str = ""
    number: int = 0
    count: int = 0
    report: Report | None = None
    error: str = ""
    what: str = ""
    plugin: str = ""
    why: str = ""
    hint: str = ""


def measure(
    record: PluginRecord, *, is_quick: bool, select: str, report_progress: Callable[[str, int, int], None], seconds: float = _SECONDS
) -> Report:
    """Measure the first device of an accelerator, and return the report. Initialises the driver, in a child process.

    Args:
        record: The accelerator.
        is_quick: Whether to measure small sizes for a short time.
        select: A pattern for the names of measurements, as in a shell.
        report_progress: Called before each measurement with its name, its number and the number of measurements.
        seconds: The time limit of each measurement.

    Raises:
        BrokenPluginError: If the plugin fails, crashes, or takes longer than ``seconds``.
        UsageError: If ``select`` selects no measurement.
    """
    process = child_processes.start(
        subprocess_env.command(_WORKER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=subprocess_env.environment(Path(__file__).resolve().parents[2]),  # not a probe: the device is used as by a program
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers: queue.Queue[bytes] = queue.Queue()
    listener = threading.Thread(target=_listen, args=(process, answers), name="accelkit-bench", daemon=True)
    listener.start()
    request = {"record": dataclasses.asdict(record), "sys_path": subprocess_env.search_path(), "is_quick": is_quick, "select": select}
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.close()
        limit, doing = probing.time_limit("start") + probing.time_limit("load"), "while it was being loaded"
        while True:
            message = _receive(record, process, answers, limit, doing)
            if message.report is not None:
                return message.report
            report_progress(message.measuring, message.number, message.count)
            limit, doing = seconds, f"in the measurement {message.measuring}"
    finally:
        child_processes.end(process)
        listener.join()
        process.stdout.close()


def _listen(process: subprocess.Popen[bytes], answers: queue.Queue[bytes]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)
    answers.put(b"")


def _receive(record: PluginRecord, process: subprocess.Popen[bytes], answers: queue.Queue[bytes], seconds: float, doing: str) -> _Message:
    """Return the next message. Raises the error that it describes."""

    def broken(why: str) -> BrokenPluginError:
        hint = "report it to the vendor; accelkit bench --select leaves measurements out"
        return BrokenPluginError(f"the speed of {record.name} cannot be measured", plugin=record.plugin, why=why, hint=hint)

    try:
        text = answers.get(timeout=seconds)
    except queue.Empty:
        raise broken(f"it exceeded the time limit of {seconds:g} s {doing}") from None
    if not text:
        code = process.wait()
        how = f"it crashed with {subprocess_env.signal_name(code)}" if code < 0 else f"it ended the process with exit code {code}"
        raise broken(f"{how} {doing}")
    try:
        message = untrusted_json.decode(_Message, untrusted_json.parse(text))
    except ValueError as error:
        raise broken(f"its answer cannot be read: {error}") from error
    if message.what:
        kind = _ERRORS.get(message.error, BrokenPluginError)
        raise kind(message.what, plugin=message.plugin, why=message.why, hint=message.hint)
    return message
