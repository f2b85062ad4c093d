"""Child processes that run a plugin's code and do not outlive this process, however it ends.

Such a child may hang in a driver, never release the GIL, or start processes of its own. Each child therefore leads a process group, and one
guard process (``child_guard``) kills the remaining groups when this process has ended, whether normally, by an error or by ``kill -9``. The
guard runs as long as there are children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from accelkit import child_guard

SHOW_STACK = getattr(signal, "SIGUSR1", None)
"""The signal on which a child process that probes plugins writes its stack to its report. None on systems without SIGUSR1."""


class _Guard:
    """The guard process and the process groups that it guards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()
        self._is_known_to_forks = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def ready(self) -> None:
        """Start the guard process if it is not running. Call this before starting a child, so that ``add`` is fast."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()

    def add(self, leader: int) -> None:
        """Guard the process group that ``leader`` leads or will lead: kill the group if this process ends before ``remove`` is called."""
        with self._lock:
            self._groups.add(leader)
            if self._process is None or self._process.poll() is not None:
                self._start()
            else:
                self._tell(f"+{leader}")

    def remove(self, leader: int) -> None:
        with self._lock:
            if leader not in self._groups:
                return
            self._groups.discard(leader)
            self._tell(f"-{leader}")
        self.rest()

    def rest(self) -> None:
        """Stop the guard process if there is nothing to guard."""
        with self._lock:
            if not self._groups:
                self._stop()

    def _start(self) -> None:
        if not self._is_known_to_forks and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)
            self._is_known_to_forks = True
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", child_guard.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that Ctrl-C does not reach the guard
        )
        for group in self._groups:
            self._tell(f"+{group}")

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # the guard was killed
                self._process.stdin.write(f"{line}\n".encode())
                self._process.stdin.flush()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.wait()

    def _forget(self) -> None:
        """Close this forked process's copy of the pipe to the guard process.

        While a copy is open, the guard process does not notice that the parent process has ended.
        """
        process, self._process = self._process, None
        self._lock, self._groups = threading.Lock(), set()
        if process is not None and process.stdin is not None:
            os.close(process.stdin.fileno())
            process.returncode = 0  # the forked process cannot wait for the guard, which is not its child


guard = _Guard()


def start(arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process in its own session and process group. The whole group is killed when the calling process ends.

    The arguments are those of ``subprocess.Popen``. Pass the started process to ``end`` when it is no longer needed.
    """
    guard.ready()
    try:
        process = subprocess.Popen(arguments, start_new_session=True, **options)
    except BaseException:
        guard.rest()
        raise
    guard.add(process.pid)
    return process


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill the process and, except on Windows, everything in its group. Any thread may call this."""
    if hasattr(os, "killpg"):
        _kill_group(process.pid)
    elif process.poll() is None:
        process.kill()


def interrupt(process: subprocess.Popen[Any], seconds: float) -> None:
    """Send SIGINT to the process group of ``process``, and wait up to ``seconds`` for the process to end. Does nothing on Windows.

    Unlike a killed process, an interrupted process can clean up. For example, a process that is killed while it builds an extension with
    torch's ``cpp_extension`` leaves a lock file behind, and every later process that loads this extension waits for ever.
    """
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill the process and, except on Windows, everything that is left in its group. Wait for the process to end."""
    kill(process)
    guard.remove(process.pid)
    process.wait()


def end_group(leader: int) -> None:
    """Kill the remaining processes in the process group that ``leader`` leads, and stop guarding the group. On Windows, kills nothing."""
    if hasattr(os, "killpg"):
        _kill_group(leader)
    guard.remove(leader)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS returns EPERM for a group with only zombies
        os.killpg(leader, signal.SIGKILL)


def run(
    arguments: Sequence[str], *, input: str | bytes | None = None, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a process as ``subprocess.run`` does, but let no process in the child's group outlive the call or this process.

    On Windows, only the child itself is killed. ``options`` are arguments of ``subprocess.Popen``, so ``check`` and ``capture_output`` are
    not supported. The child's standard input is ``input``, or empty if ``input`` is None.

    Raises:
        subprocess.TimeoutExpired: If the process runs for longer than ``timeout`` seconds.
    """
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    process = start(arguments, stdin=stdin, **options)
    try:
        stdout, stderr = process.communicate(input, timeout=timeout)
    finally:
        end(process)
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):  # the pipes are still open after a timeout
            with contextlib.suppress(OSError):  # closing flushes the input, which fails if the process did not read all of it
                pipe.close()
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)
