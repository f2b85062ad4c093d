"""Probing of plugins in parallel child processes with a time limit, since any plugin may crash, hang or return wrong results.

The argument ``question`` of ``_ask_each`` selects what a child process does with each plugin:

- ``probe``: It imports the plugin and, if the plugin is an accelerator, calls its probe.
- ``trial``: It does the same, and checks the import of a third-party plugin for side effects. It also builds and loads an accelerator, and
  runs a small computation on it.
- ``definitions``: It reads what the plugin's class defines.
- ``mistakes``: It runs the static checks on the class.
- ``checks``: It calls the ``doctor_checks`` of a hook plugin.

The output of plugins is discarded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from accelkit import child_processes, untrusted_json
from accelkit.discovery import subprocess_env
from accelkit.discovery.build_progress import BuildNotice
from accelkit.discovery.remedies import by_text
from accelkit.discovery.verdict import Verdict
from accelkit.errors import UsageError
from accelkit.types import PluginRecord

INSIDE_A_PROBE = "ACCELKIT_PROBING"
Limit = Literal["start", "probe", "load", "build"]
Question = Literal["probe", "trial", "definitions", "mistakes", "checks"]
_LIMITS: dict[Limit, tuple[str, float]] = {
    "start": ("ACCELKIT_START_TIMEOUT", 120.0),
    "probe": ("ACCELKIT_PROBE_TIMEOUT", 10.0),
    "load": ("ACCELKIT_LOAD_TIMEOUT", 60.0),
    "build": ("ACCELKIT_BUILD_TIMEOUT", 1800.0),
}
_LIMIT_OF_STAGE: dict[str, Limit] = {"start": "start", "torch": "start", "build": "build"}
"""The name of the time limit of each stage that does not use the usual limit (``probe`` or ``load``).

Python and torch start slowly on a busy machine, which must not count against a plugin.
"""
_DOING = {
    "start": "before it was probed",
    "torch": "while importing torch",
    "import": "while it was being imported",
    "probe": "in probe()",
    "instance": "while an instance was being created",
    "doctor": "in doctor_checks()",
    "build": "in build()",
    "load": "in load(), which imports the vendor's torch package",
    "check": "while computing on the device",
}
_TORCH_ALONE = "python -c 'import torch' shows whether torch itself is the cause"
_POLL_SECONDS = 0.005
_LOOK_SECONDS = 0.25
_SPARE_SECONDS = 10.0
_CLEAN_UP_SECONDS = 2.0
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_STANDARD_LIBRARY = os.path.dirname(os.__file__)


def ask_all(records: Sequence[PluginRecord], *, is_trial: bool = False) -> dict[PluginRecord, Verdict]:
    """Probe plugins. In a trial, also load accelerators and compute on their devices. Return one verdict for each record.

    Every plugin that is not built in is probed in its own child process. In a trial, this is also true of every built-in accelerator. The
    remaining plugins share one child process. No driver is initialised in the calling process, but a trial may initialise drivers in the
    child processes.

    Raises:
        UsageError: If the environment variable for any time limit (see ``time_limit``) is not a positive number of seconds.
    """
    own = [record for record in records if record.is_builtin and not (is_trial and record.kind == "accelerator")]
    batches = ([own] if own else []) + [[record] for record in records if record not in own]
    found = _ask_each(batches, "trial" if is_trial else "probe")
    return {record: found[record] for record in records}


def ask(record: PluginRecord, *, is_trial: bool = False) -> Verdict:
    """Probe one plugin, as ``ask_all`` does, and return its verdict."""
    return ask_all([record], is_trial=is_trial)[record]


def ask_definitions(record: PluginRecord) -> Verdict:
    """Read the members that the plugin's class defines, for ``Verdict.definitions``. No instance is created, so no device is needed."""
    return _ask_each([[record]], "definitions")[record]


def ask_mistakes(records: Sequence[PluginRecord]) -> dict[PluginRecord, Verdict]:
    """Run the static checks on the classes of plugins. The plugins are imported, but no instance is created and no method is called.

    The results are in ``Verdict.mistakes``. Built-in plugins share one child process; every other plugin has its own.
    """
    own = [record for record in records if record.is_builtin]
    return _ask_each(([own] if own else []) + [[record] for record in records if not record.is_builtin], "mistakes")


def ask_checks(records: Sequence[PluginRecord]) -> dict[PluginRecord, Verdict]:
    """Call ``doctor_checks`` of hook plugins, each in a separate child process. The results are in ``Verdict.checks``."""
    return _ask_each([[record] for record in records], "checks")


def _ask_each(batches: Sequence[Sequence[PluginRecord]], question: Question) -> dict[PluginRecord, Verdict]:
    """Return one verdict for each record. Each batch of records has its own child process."""
    for limit in _LIMITS:
        time_limit(limit)
    found: dict[PluginRecord, Verdict] = {}
    with contextlib.ExitStack() as stack:
        notice = stack.enter_context(BuildNotice())
        waiting = [stack.enter_context(_Child(batch, question)) for batch in batches]
        running: list[_Child] = []
        while waiting or running:
            while waiting and len(running) < max(2, os.cpu_count() or 1):
                running.append(waiting.pop(0))
                running[-1].start()
            for child in [child for child in running if child.has_ended()]:
                running.remove(child)
                found |= child.verdicts()
            notice.update([child.records[0].plugin for child in running if child.is_building])
            time.sleep(_POLL_SECONDS)
    return found


class _Child:
    """A child process and its report. When the ``with`` block ends, the child and every process that it started are killed."""

    def __init__(self, records: Sequence[PluginRecord], question: Question) -> None:
        self.records, self.question = records, question
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Child:
        self._folder = tempfile.TemporaryDirectory(prefix="accelkit-probe-")
        self._report = Path(self._folder.name) / "report"
        self._report.touch()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()
        self._folder.cleanup()

    def start(self) -> None:
        request = {
            "sys_path": subprocess_env.search_path(),
            "report": str(self._report),
            "question": self.question,
            "records": [dataclasses.asdict(record) for record in self.records],
            "seconds": _SPARE_SECONDS + sum(time_limit(limit) for limit in _LIMITS),
        }
        self._request = Path(self._folder.name) / "request"
        self._request.write_text(json.dumps(request), encoding="utf-8")
        environ = subprocess_env.environment(Path(__file__).resolve().parents[2], **{INSIDE_A_PROBE: "1"})
        self._start_clock("start")
        with self._request.open("rb") as stdin:
            self._process = child_processes.start(
                subprocess_env.command("accelkit.discovery.probe_worker"),
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environ,
            )

    def _start_clock(self, limit: Limit) -> None:
        self._limit = limit
        self._deadline = time.monotonic() + time_limit(limit)
        self._next_look = time.monotonic() + _LOOK_SECONDS

    @property
    def is_building(self) -> bool:
        """Whether the plugin's ``build`` is running."""
        return self._limit == "build"

    def _follow_stages(self) -> None:
        """Restart the clock with the time limit of the child's stage if this limit has changed, for example because ``build`` has begun."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        stages = self._read_report()[0]
        limit = _LIMIT_OF_STAGE.get(next(reversed(stages.values()), "start"), "probe" if self.question == "probe" else "load")
        if limit != self._limit:
            self._start_clock(limit)

    def has_ended(self) -> bool:
        """Kill the child if it has exceeded its time limit. Return whether the child has ended."""
        assert self._process is not None
        self._follow_stages()
        self._is_late = self._process.poll() is None and time.monotonic() > self._deadline
        if self._is_late:
            self._late = self._read_report()[:2]
            self._show_stack(self._process)
            child_processes.interrupt(self._process, _CLEAN_UP_SECONDS)
            self._end()
        return self._process.poll() is not None

    def _show_stack(self, process: subprocess.Popen[bytes]) -> None:
        """Make the child append its stack to its report file.

        Wait until it has done so or has ended, but for at most two seconds. Without the wait, the SIGINT that the caller sends next might
        reach another thread instead of the child's main thread.
        """
        if child_processes.SHOW_STACK is None:
            return
        size, deadline = self._report.stat().st_size, time.monotonic() + _CLEAN_UP_SECONDS
        process.send_signal(child_processes.SHOW_STACK)
        while self._report.stat().st_size == size and process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def verdicts(self) -> dict[PluginRecord, Verdict]:
        stages, verdicts, crash = self._read_report()
        if self._is_late:
            stages, verdicts = self._late  # a plugin may have turned the interruption into an error of its own
        self._end()
        return {
            record: self._verdict(record, verdicts[index])
            if index in verdicts
            else self._verdict_of_ended_child(record, stages.get(index, "start"), crash)
            for index, record in enumerate(self.records)
        }

    def _verdict(self, record: PluginRecord, fields: object) -> Verdict:
        try:
            return Verdict.from_dict(fields)
        except ValueError as error:
            return Verdict("broken", f"its result cannot be read: {error}", f"report it to the vendor of {record.distribution}")

    def _read_report(self) -> tuple[dict[int, str], dict[int, Any], str]:
        stages: dict[int, str] = {}
        verdicts: dict[int, Any] = {}
        rest = []
        for line in self._report.read_text("utf-8", "replace").splitlines():
            try:
                entry = untrusted_json.parse(line)
                if "verdict" in entry:
                    verdicts[entry["index"]] = entry["verdict"]
                else:
                    stages[entry["index"]] = str(entry["stage"])
            except (ValueError, TypeError, KeyError):
                rest.append(line)
        return stages, verdicts, "\n".join(rest)

    def _verdict_of_ended_child(self, record: PluginRecord, stage: str, crash: str) -> Verdict:
        assert self._process is not None
        code = self._process.returncode
        remedy = f"report it to the vendor of {record.distribution}; ACCELKIT_DISABLE_PLUGINS={record.distribution} disables it"
        if self._is_late:
            reason = f"it exceeded the time limit of {time_limit(self._limit):g} s {_DOING.get(stage, stage)}"
            variable = _LIMITS[self._limit][0]
            if self._limit == "start":
                return Verdict("broken", reason, f"increase {variable} (seconds) if this machine is slow; {_TORCH_ALONE}", crash)
            place = _place(crash)
            hint = by_text(place) or f"increase {variable} (seconds) if it needs more time; otherwise {remedy}"
            return Verdict("broken", f"{reason}{place and f': it was at {place}'}", hint, crash)
        if code < 0:
            return Verdict("broken", f"it crashed with {subprocess_env.signal_name(code)} {_DOING.get(stage, stage)}", remedy, crash)
        return Verdict("broken", f"it ended the process with exit code {code} {_DOING.get(stage, stage)}", remedy, crash)

    def _end(self) -> None:
        if self._process is not None:
            child_processes.end(self._process)


def _place(stack: str) -> str:
    """Return where a process was, according to its stack, in the form ``file.py:3 (function)``.

    The innermost frame outside the standard library is used. If all frames are in the standard library, the innermost frame is used. The
    result is "" if ``stack`` contains no frame.
    """
    frames = list(_FRAME.finditer(stack))
    own = [frame for frame in frames if "site-packages" in frame["file"] or not frame["file"].startswith((_STANDARD_LIBRARY, "<frozen"))]
    frame = next(iter(own or frames), None)
    if frame is None:
        return ""
    _, is_installed, module = frame["file"].rpartition("site-packages/")
    return f"{module if is_installed else Path(module).name}:{frame['line']} ({frame['function']})"


def time_limit(limit: Limit) -> float:
    """Return a time limit for a child process, in seconds, from an environment variable such as ACCELKIT_START_TIMEOUT.

    If the variable is not set or is empty, return the default.

    Args:
        limit: ``start`` for starting the process and importing torch, ``probe`` for a probe, ``build`` for a build, or ``load`` for
            everything else, such as the other stages of a trial.

    Raises:
        UsageError: If the variable is not a positive number of seconds.
    """
    variable, default = _LIMITS[limit]
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(
            f"{variable}={text!r} is not a valid time limit",
            why="it must be a positive number of seconds",
            hint=f"unset it to use {default:g} s",
        )
    return seconds
