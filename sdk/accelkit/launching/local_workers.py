"""Start and watch the processes of one machine, and end them together with all processes that they started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from accelkit import child_processes
from accelkit.launching import process_tree, worker_main
from accelkit.launching.failures import PEER_SECONDS, Ending, is_waiting_for_lost_peer, read_record
from accelkit.launching.log_tee import Screen, Streams

_POLL_SECONDS = 0.02
_UNWINDING_SECONDS = 30.0
"""The time that a process may take to exit after an error. Some processes hang in the destructor of a communication library."""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """The program that every process runs.

    Attributes:
        name: The path of a script (or folder, or archive), or the name of a module.
        is_module: Whether the program is run as a module, as with ``python -m``.
        arguments: The arguments of the program.
    """

    name: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()


class _Process:
    """The process of one rank. It is not reaped until all processes have ended, so that its process ID is not reused."""

    def __init__(self, program: Program, ending: Ending, environ: Mapping[str, str]) -> None:
        self.ending = ending
        kind = "module" if program.is_module else "script"
        words = [str(ending.error_file), kind, program.name, *program.arguments]
        self._process = child_processes.start(
            [sys.executable, "-u", worker_main.__file__, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.pipes = os.dup(self._process.stdout.fileno()), os.dup(self._process.stderr.fileno())
        self._process.stdout.close()
        self._process.stderr.close()
        self.has_ended = threading.Event()
        threading.Thread(target=self._wait, name=f"accelkit-rank-{ending.rank}", daemon=True).start()

    def _wait(self) -> None:
        if hasattr(os, "waitid"):
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self.ending.at = time.time()
            assert result is not None
            self.ending.exit_code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        else:
            self.ending.exit_code = self._process.wait()
            self.ending.at = time.time()
        self.has_ended.set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the worker process, not to its children. The worker process is expected to end its children itself."""
        if not self.has_ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def reap(self) -> None:
        self._process.wait()


class LocalRanks:
    """The worker processes of a job on this machine. The constructor starts them. After each rendezvous, a new object is created.

    Args:
        program: The program that the processes run.
        folder: The folder for the logs. The logs of the process with the global rank N are written to the new folder ``rank-N`` in it.
        environs: The environment variables of each process, by global rank.
        screens: Two screens: the first for the standard output of all processes, the second for their standard error.
    """

    def __init__(self, program: Program, folder: Path, environs: Mapping[int, Mapping[str, str]], screens: Sequence[Screen]) -> None:
        self._streams = Streams()
        self._processes: list[_Process] = []
        self._has_ended = False
        self._began = 0.0  # the time at which end() was first called; 0 until then
        try:
            for number, environ in environs.items():
                own = folder / f"rank-{number}"
                own.mkdir(parents=True)
                process = _Process(program, Ending(number, own), environ)
                self._processes.append(process)
                for pipe, name, screen in zip(process.pipes, ("stdout.log", "stderr.log"), screens, strict=True):
                    self._streams.add(pipe, own / name, screen, number)
        except BaseException:
            self._streams.start()
            self.end(signal.SIGKILL, 0.0)
            raise
        self._streams.start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def endings(self) -> list[Ending]:
        return [process.ending for process in self._processes]

    def have_failed(self) -> bool:
        """Return whether any process has exited with an error, or is still running more than 30 seconds after it recorded an error."""
        for process in self._processes:
            if process.has_ended.is_set():
                if process.ending.exit_code:
                    return True
            elif (record := read_record(process.ending.error_file)) and time.time() - float(record["time"]) > _UNWINDING_SECONDS:
                return True
        return False

    def have_finished(self) -> bool:
        """Return whether every process has ended without failing."""
        return all(process.has_ended.is_set() and process.ending.exit_code == 0 for process in self._processes)

    def wait_for_lost_peer(self, is_hurried: Callable[[], bool]) -> None:
        """If the failed processes may have lost their connection to a process that is still running, wait for that process.

        The wait ends when that process ends or records an error that does not report a lost peer. It lasts at most ``PEER_SECONDS``, and
        ends early if ``is_hurried`` returns True.
        """
        deadline = time.monotonic() + PEER_SECONDS
        while is_waiting_for_lost_peer(self.endings) and time.monotonic() < deadline and not is_hurried():
            time.sleep(_POLL_SECONDS)

    def end(self, number: signal.Signals, grace: float, is_hurried: Callable[[], bool] = bool) -> None:
        """End all processes and everything that they started, and read their remaining output.

        The first signal that the launcher receives raises an exception in the launcher. If the exception interrupts this method,
        call the method again to finish the work.

        Args:
            number: The signal that is sent to the processes that are still running.
            grace: The number of seconds between the signal ``number`` and SIGKILL.
            is_hurried: A function that returns whether to send SIGKILL immediately. It is called repeatedly during the ``grace`` seconds.
        """
        if self._has_ended:
            return
        began = self._began = self._began or time.time()
        for process in self._processes:
            if not process.has_ended.is_set():
                process.ending.sent = number
                process.send(number)
        deadline = time.monotonic() + grace
        while any(not process.has_ended.is_set() for process in self._processes):
            if time.monotonic() > deadline or is_hurried():
                for process in self._processes:
                    if not process.has_ended.is_set():
                        process.ending.sent = signal.SIGKILL
                        process.send(signal.SIGKILL)
                break
            time.sleep(_POLL_SECONDS)
        for process in self._processes:
            process.has_ended.wait(
                _UNWINDING_SECONDS
            )  # a process in uninterruptible sleep in a driver cannot be ended, so do not wait longer
        process_tree.end_descendants()
        for process in self._processes:
            child_processes.end_group(process.pid)
            if process.has_ended.is_set():
                process.reap()
            process.ending.read(began)
        self._streams.close()
        self._has_ended = True
