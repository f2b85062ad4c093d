"""A child process in which a command, such as ``accelkit bench``, uses a plugin.

The plugin may crash the child process, hang, or return nonsense. The parent process does not import torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from accelkit import child_processes, untrusted_json
from accelkit.discovery import probing, subprocess_env
from accelkit.errors import AccelkitError, BrokenPluginError
from accelkit.types import PluginRecord

REPORT_IT = "report it to the vendor"


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A message from the child process. Subclasses add fields. The fields of this class describe an error, if there is one."""

    error: str = ""
    what: str = ""
    plugin: str = ""
    why: str = ""
    hint: str = ""


AnyMessage = TypeVar("AnyMessage", bound=Message)


class PluginProcess(Generic[AnyMessage]):
    """A child process that uses a plugin. Use it as a context manager; leaving the context ends the process.

    Args:
        worker: The name of the module that the process runs. The module uses ``plugin_worker``.
        message: The class of the messages that the process sends.
        record: The accelerator's record.
        request: The fields of the request other than the accelerator's record and the search path.
        failed: The beginning of the error's text if the plugin fails, such as ``the speed of acme cannot be measured``.
        hint: What a user can do if the plugin fails.
        errors: Classes of errors that the process may report in addition to ``BrokenPluginError``.
        environ: Environment variables that the child process gets in addition to those of the calling process.
    """

    def __init__(
        self,
        worker: str,
        message: type[AnyMessage],
        record: PluginRecord,
        request: Mapping[str, Any],
        *,
        failed: str,
        hint: str = REPORT_IT,
        errors: tuple[type[AccelkitError], ...] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._worker, self._message, self._record, self._request = worker, message, record, request
        self._failed, self._hint = failed, hint
        self._errors = {cls.__name__: cls for cls in errors}
        self._environ = environ or {}
        self._lines: queue.Queue[bytes] = queue.Queue()

    def __enter__(self) -> PluginProcess[AnyMessage]:
        self._process = child_processes.start(
            subprocess_env.command(self._worker),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=subprocess_env.environment(Path(__file__).resolve().parents[2], **self._environ),
        )
        self._listener = threading.Thread(target=self._listen, name="accelkit-plugin-process", daemon=True)
        self._listener.start()
        self.send(json.dumps({"record": dataclasses.asdict(self._record), "sys_path": subprocess_env.search_path()} | dict(self._request)))
        return self

    def __exit__(self, *exc_info: object) -> None:
        child_processes.end(self._process)
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # the process has not read a request
                pipe.close()

    @property
    def exit_code(self) -> int | None:
        """The exit code, or minus the number of the signal that killed the process. None while the process runs."""
        return self._process.poll()

    def send(self, line: str = "") -> None:
        """Write a line to the standard input of the process. An empty line can serve as a request.

        If the process has ended, nothing is written, and the next ``receive`` raises an error.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def receive_first(self) -> AnyMessage:
        """Return the first message, which the process sends after it has loaded the plugin. Raises the errors of ``receive``."""
        return self.receive(probing.time_limit("start") + probing.time_limit("load"), "while it was being loaded", "ACCELKIT_LOAD_TIMEOUT")

    def receive(self, seconds: float, doing: str, variable: str = "") -> AnyMessage:
        """Return the next message.

        Args:
            seconds: How long to wait for the message.
            doing: What the plugin is doing, as a phrase that can follow ``it crashed``, for example ``in get_device_stats()``.
            variable: The environment variable that sets the time limit, or "" if no variable does.

        Raises:
            BrokenPluginError: If the plugin fails, crashes, takes longer than ``seconds``, or sends a message that cannot be read.
            AccelkitError: If the process reports an error of a class that was passed to the constructor as ``errors``.
        """
        try:
            text = self._lines.get(timeout=seconds)
        except queue.Empty:
            longer = f"increase {variable} (seconds) if it needs more time; otherwise {self._hint}" if variable else self._hint
            raise self._broken(f"it exceeded the time limit of {seconds:g} s {doing}", longer) from None
        if not text:
            code = self._process.wait()
            how = f"it crashed with {subprocess_env.signal_name(code)}" if code < 0 else f"it ended the process with exit code {code}"
            raise self._broken(f"{how} {doing}", self._hint)
        try:
            message = untrusted_json.decode(self._message, untrusted_json.parse(text))
        except ValueError as error:
            raise self._broken(f"its answer cannot be read: {error}", self._hint) from error
        if message.what:
            kind = self._errors.get(message.error, BrokenPluginError)
            raise kind(message.what, plugin=message.plugin, why=message.why, hint=message.hint)
        return message

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _broken(self, why: str, hint: str) -> BrokenPluginError:
        return BrokenPluginError(self._failed, plugin=self._record.plugin, why=why, hint=hint)
