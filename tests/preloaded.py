"""Processes that are forked from a server that has already imported torch, which saves a second or two for each process.

A script has the same arguments, environment, working directory, warning filters and ``__main__`` as in a separate interpreter, and
its process ends in the same way. Two servers fork alternately, so that the processes of a job iterate over sets of strings in
different orders. Tests of the start of an interpreter, or of variables that it reads at its start, need a real interpreter.
"""

from __future__ import annotations

import atexit
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import fork_server
from forked_python import read_at_start, start

OPTIONS = ("-W", "error::UserWarning:accelkit")
"""Options of the interpreters that fork the processes of a ``Process``."""
_MODULES = ("accelkit.runtime",)
"""Modules that they have imported, besides torch."""
SERVERS = 2
_ENVIRON = dict(os.environ)
"""The environment before any test changed it."""
_PYTHON = sys.executable
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
        self.returncode: int | None = None
        self._connection = _Server.get(_PYTHON, number % SERVERS, OPTIONS, (*_MODULES, *modules)).connect()
        job = {
            "arguments": list(command),
            "environ": dict(env),
            "folder": str(cwd or Path.cwd()),
            "files": [0, 1, 2],
            "executable": _PYTHON,
        }
        with open(os.devnull) as stdin:
            self.pid = start(self._connection, job, [stdin.fileno(), stdout.fileno(), stderr.fileno()])

    def poll(self) -> int | None:
        self._listen(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends.

        Raises:
            subprocess.TimeoutExpired: If this takes longer than ``timeout`` seconds.
        """
        self._listen(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("", timeout or 0)
        return self.returncode

    def end(self) -> None:
        """Kill the process and its group, unless it has ended."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait()

    def _listen(self, seconds: float | None) -> None:
        """Wait for the process's end, for at most ``seconds``."""
        if self.returncode is None and select.select([self._connection], [], [], seconds)[0]:
            message = self._connection.recv(fork_server.MESSAGE.size, socket.MSG_WAITALL)
            if not message:
                raise RuntimeError("the server that forks the processes of tests has ended")
            self.returncode = os.waitstatus_to_exitcode(fork_server.MESSAGE.unpack(message)[1])
            self._connection.close()


def start_servers() -> None:
    """Wait until the servers of the processes of a job have started, so that no process of it waits for a server of another."""
    for server in [_Server.get(_PYTHON, number, OPTIONS, _MODULES) for number in range(SERVERS)]:
        server.connect().close()


def run(
    command: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, modules: Sequence[str] = (), timeout: float = 280
) -> subprocess.CompletedProcess[str]:
    """Run a script until it ends, like ``subprocess.run`` with captured text."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stdout, tempfile.TemporaryFile("w+", encoding="utf-8") as stderr:
        process = Process(command, env, stdout, stderr, cwd=cwd, modules=modules)
        try:
            process.wait(timeout)
        finally:
            process.end()
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(list(command), process.wait(), stdout.read(), stderr.read())


def programs(*modules: str, python: str = _PYTHON) -> Path:
    """Return a folder with ``python``, ``accelkit`` and ``torchrun``, whose processes are forked, for the start of ``PATH``.

    ``sys.executable`` is ``python`` in that folder, so processes that such a process starts are forked too. Their pids are those of
    ``forked_python.py``, which forwards signals.

    Args:
        modules: Modules that the server has imported, besides torch.
        python: The interpreter of the environment whose packages the processes import. accelkit must be installed there.
    """
    server = _Server.get(python, 0, (), modules)
    server.connect().close()
    return server.programs


class _Server:
    """A server that forks processes."""

    def __init__(self, python: str, options: Sequence[str], modules: Sequence[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fork-"))
        environ = _ENVIRON | _FOR_SERVERS
        for name in ("PYTHONPATH", "PYTHONUNBUFFERED"):  # conftest.py removes the second for the tests
            environ.pop(name, None)
        command = [python, *options, str(Path(fork_server.__file__).absolute()), str(self._socket), *modules]
        # Only the end of this process ends the server, which then kills its processes: a signal to the group does not reach it.
        self._process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, start_new_session=True)
        self._creator = os.getpid()
        atexit.register(self.stop)
        self.programs = self.folder / "bin"
        self.programs.mkdir()
        program = (
            f"#!{python} -IS\nimport sys\nsys.path.append({str(Path(__file__).parent)!r})\nimport forked_python\n"
            f"forked_python.main({python!r}, {str(self._socket)!r}, {read_at_start(environ)!r})\n"
        )
        for name in ("python", "python3", "accelkit", "torchrun"):
            (self.programs / name).write_text(program, "utf-8")
            (self.programs / name).chmod(0o755)

    @property
    def _socket(self) -> Path:
        return self.folder / "socket"

    @classmethod
    def get(cls, python: str, number: int, options: Sequence[str], modules: Sequence[str]) -> _Server:
        key = (os.getpid(), python, number, *options, *modules)
        if key not in _SERVERS_THAT_RUN:
            _SERVERS_THAT_RUN[key] = cls(python, options, modules)
        return _SERVERS_THAT_RUN[key]

    def connect(self) -> socket.socket:
        """Connect to the server, which takes a second or two to start."""
        connection = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 120
        while True:
            try:
                connection.connect(str(self._socket))
                return connection
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def stop(self) -> None:
        assert self._process.stdin is not None
        if os.getpid() != self._creator:  # a fork of it ends
            return
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_SERVERS_THAT_RUN: dict[tuple[object, ...], _Server] = {}
