"""Processes that are forked from a server that has already imported torch, which saves a second or two for each process.

A script has the same arguments, environment, working directory, warning filters and ``__main__`` as in a separate interpreter, and
its process ends in the same way. Two servers fork alternately, so that the processes of a job iterate over sets of strings in
different orders. Tests of the start of an interpreter, or of variables that it reads at its start, need a real interpreter.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

OPTIONS = ("-W", "error::UserWarning:accelkit")
"""Options of the servers' interpreters."""
SERVERS = 2
_MESSAGE = struct.Struct("ii")
_STARTED = -1
_ENVIRON = dict(os.environ)
"""The environment before any test changed it."""
_FOR_SERVERS = {
    "OMP_NUM_THREADS": "1",  # more threads would not survive a fork
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # devices read environment variables, which the servers do not have
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class Process:
    """A process that runs a script, with the part of the interface of ``subprocess.Popen`` that tests of jobs need.

    Args:
        command: The script and its arguments.
        env: The environment.
        stdout, stderr: Files for its output.
        cwd: The working directory. The default is that of this process.
        number: Processes with different numbers modulo ``SERVERS`` come from different servers.
        modules: Modules that the server has imported, besides torch and accelkit.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        stdout: IO[str],
        stderr: IO[str],
        *,
        cwd: Path | None = None,
        number: int = 0,
        modules: Sequence[str] = (),
    ) -> None:
        self._server = _Server.get(number % SERVERS, *modules)
        self.pid = self._server.start((list(command), dict(env), str(cwd or Path.cwd())), stdout, stderr)

    @property
    def returncode(self) -> int | None:
        return self._server.exit_codes.get(self.pid)

    def poll(self) -> int | None:
        self._server.listen(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends.

        Raises:
            subprocess.TimeoutExpired: If this takes longer than ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.returncode) is None:
            left = None if deadline is None else max(0, deadline - time.monotonic())
            if left == 0:
                raise subprocess.TimeoutExpired("", timeout or 0)
            self._server.listen(left)
        return code


def run(
    command: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, modules: Sequence[str] = (), timeout: float = 280
) -> subprocess.CompletedProcess[str]:
    """Run a script until it ends, like ``subprocess.run`` with captured text."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stdout, tempfile.TemporaryFile("w+", encoding="utf-8") as stderr:
        process = Process(command, env, stdout, stderr, cwd=cwd, modules=modules)
        try:
            process.wait(timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(list(command), process.wait(), stdout.read(), stderr.read())


class _Server:
    """The client side of a server that forks processes."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._socket, its_own = socket.socketpair()
        self.exit_codes: dict[int, int] = {}
        command = [sys.executable, *OPTIONS, str(Path(__file__).absolute()), str(its_own.fileno()), *modules]
        self._process = subprocess.Popen(command, env=_ENVIRON | _FOR_SERVERS, stdin=subprocess.DEVNULL, pass_fds=[its_own.fileno()])
        its_own.close()
        atexit.register(self.stop)

    @classmethod
    def get(cls, number: int, *modules: str) -> _Server:
        key = (os.getpid(), number, *modules)
        if key not in _SERVERS_THAT_RUN:
            _SERVERS_THAT_RUN[key] = cls(modules)
        return _SERVERS_THAT_RUN[key]

    def start(self, job: tuple[list[str], dict[str, str], str], stdout: IO[str], stderr: IO[str]) -> int:
        with tempfile.TemporaryFile() as file:
            file.write(pickle.dumps(job))
            file.flush()
            socket.send_fds(self._socket, [b"j"], [file.fileno(), stdout.fileno(), stderr.fileno()])
            while (pid := self.listen(None)) is None:
                pass
        return pid

    def listen(self, seconds: float | None) -> int | None:
        """Read the server's messages for at most ``seconds``. Return the pid of a process that has started, if any."""
        while select.select([self._socket], [], [], seconds)[0]:
            message = self._socket.recv(_MESSAGE.size, socket.MSG_WAITALL)
            if not message:
                raise RuntimeError(f"the server that forks the processes of tests has ended with exit code {self._process.wait()}")
            pid, status = _MESSAGE.unpack(message)
            if status == _STARTED:
                self.exit_codes.pop(pid, None)  # remove the exit code of an earlier process with the same pid
                return int(pid)
            self.exit_codes[pid] = os.waitstatus_to_exitcode(status)
            seconds = 0
        return None

    def stop(self) -> None:
        self._socket.close()
        self._process.wait()


_SERVERS_THAT_RUN: dict[tuple[object, ...], _Server] = {}


def serve(connection: socket.socket) -> dict[str, Any]:
    """Fork a process for each job until the connection is closed. Returns only in the processes of jobs, with their namespace."""
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([connection, wake], [], [])
        if wake in readable:
            wake.recv(4096)
            _report_ended_processes(connection)
        if connection in readable:
            data, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
            if not data:
                os._exit(0)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (connection, wake, woken):
                    end.close()
                return _become(*descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            connection.sendall(_MESSAGE.pack(pid, _STARTED))


def _report_ended_processes(connection: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection.sendall(_MESSAGE.pack(pid, status))


def _become(job: int, stdout: int, stderr: int) -> dict[str, Any]:
    """Set up this process for the job. Return the namespace of ``__main__``, in which the script must be executed."""
    import accelkit

    os.setsid()
    with os.fdopen(job, "rb") as file:
        file.seek(0)
        command, environ, folder = pickle.load(file)
    for descriptor, number in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    if environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.argv = command
    sys.path[:1] = [str(Path(command[0]).parent), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    accelkit.refresh()  # sys.path has changed, so other plugins may be installed
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = command[0]
    return vars(main)


if __name__ == "__main__":
    for module in ("torch.distributed.fsdp", "accelkit.runtime", *sys.argv[2:]):
        importlib.import_module(module)
    import torch

    assert threading.active_count() == 1, threading.enumerate()
    namespace = serve(socket.socket(fileno=int(sys.argv[1])))
    torch._import_device_backends()
    exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), namespace)
