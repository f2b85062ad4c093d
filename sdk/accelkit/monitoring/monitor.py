"""Repeated reading of the statistics of a plugin's devices, in a child process that may crash or hang."""

from __future__ import annotations

import dataclasses
import json
import queue
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from accelkit import child_processes, untrusted_json
from accelkit.discovery import probing, subprocess_env
from accelkit.errors import BrokenPluginError, DevicesError
from accelkit.types import PluginRecord

_WORKER = "accelkit.monitoring.worker"


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The statistics of the devices at one time.

    Attributes:
        time: Seconds since the epoch.
        stats: The statistics of each device by its name, such as ``acme:0``. Keys contain the unit, as in ``board.power.watts``.
    """

    time: float
    stats: dict[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """A message from the child process: the names of the devices, their statistics, or the parts of an error."""

    devices: tuple[str, ...] = ()
    stats: tuple[Mapping[str, float], ...] = ()
    error: str = ""
    what: str = ""
    plugin: str = ""
    why: str = ""
    hint: str = ""


class Monitor:
    """A child process that reads the statistics of devices whenever ``sample`` is called. It may initialise the driver.

    Args:
        record: The accelerator.
        devices: The devices, as in ``Runtime(devices=)``.

    Use it as a context manager. Entering raises the errors of ``sample``, and ``DevicesError`` if there are no such devices.
    """

    def __init__(self, record: PluginRecord, devices: str = "-1") -> None:
        self._record, self._request = record, {"record": dataclasses.asdict(record), "devices": devices}
        self._answers: queue.Queue[bytes] = queue.Queue()
        self.devices: tuple[str, ...] = ()

    def __enter__(self) -> Monitor:
        root = Path(__file__).resolve().parents[2]
        self._process = child_processes.start(
            subprocess_env.command(_WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=subprocess_env.environment(root, **{probing.INSIDE_A_PROBE: "1"}),
        )
        threading.Thread(target=self._listen, name="accelkit-monitor", daemon=True).start()
        try:
            seconds = probing.time_limit("start") + probing.time_limit("load")
            request = json.dumps(self._request | {"sys_path": subprocess_env.search_path()})
            self.devices = self._ask(request, "while it was being loaded", "ACCELKIT_LOAD_TIMEOUT", seconds).devices
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        child_processes.end(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def sample(self) -> Sample:
        """Return the statistics of the devices.

        Raises:
            BrokenPluginError: If the plugin fails, crashes, or takes longer than ``ACCELKIT_PROBE_TIMEOUT``.
        """
        answer = self._ask("", "in get_device_stats()", "ACCELKIT_PROBE_TIMEOUT", probing.time_limit("probe"))
        return Sample(time.time(), dict(zip(self.devices, answer.stats, strict=True)))

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._answers.put(line)
        except ValueError:  # the pipe was closed
            pass
        self._answers.put(b"")

    def _ask(self, line: str, doing: str, variable: str, seconds: float) -> _Answer:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
            text = self._answers.get(timeout=seconds)
        except BrokenPipeError:
            text = b""
        except queue.Empty:
            hint = f"increase {variable} (seconds) if it needs more time; otherwise report it to the vendor"
            raise self._broken(f"it exceeded the time limit of {seconds:g} s {doing}", hint) from None
        if not text:
            code = self._process.wait()
            how = f"it crashed with {subprocess_env.signal_name(code)}" if code < 0 else f"it ended the process with exit code {code}"
            raise self._broken(f"{how} {doing}", "report it to the vendor")
        try:
            answer = untrusted_json.decode(_Answer, untrusted_json.parse(text))
        except ValueError as error:
            raise self._broken(f"its answer cannot be read: {error}", "report it to the vendor") from error
        if answer.what:
            kind = DevicesError if answer.error == DevicesError.__name__ else BrokenPluginError
            raise kind(answer.what, plugin=answer.plugin, why=answer.why, hint=answer.hint)
        return answer

    def _broken(self, why: str, hint: str) -> BrokenPluginError:
        return BrokenPluginError(f"the statistics of {self._record.name} cannot be read", plugin=self._record.plugin, why=why, hint=hint)
