"""Processes in which torch is imported already: they are forked from one that has imported it, which spares each a second or two.

A script finds in them what it finds in an interpreter of its own: arguments, environment, working directory, filters of warnings, ``__main__``; and its
process ends as an interpreter does. Two servers fork in turn, so that the processes of a job iterate over sets of strings in different orders.
Tests of how an interpreter starts, or of the variables that it reads then, need a process of their own instead.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

OPTIONS = ("-W", "error::UserWarning:accelkit")
"""Of the interpreters."""
SERVERS = 2
_MESSAGE = struct.Struct("ii")
_STARTED = -1


class Process:
    """A process that runs a script; with the part of ``subprocess.Popen`` that tests of jobs need.

    Args:
        command: The script, and its arguments.
        env: The environment.
        output: Where stdout and stderr go.
        number: Processes with different numbers modulo ``SERVERS`` come from different servers.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], output: IO[str], number: int = 0) -> None:
        self._server = _Server.get(number % SERVERS)
        self.pid = self._server.start(command, env, output)

    @property
    def returncode(self) -> int | None:
        return self._server.exit_codes.get(self.pid)

    def poll(self) -> int | None:
        self._server.listen(0)
        return self.returncode

    def wait(self) -> int:
        while (code := self.returncode) is None:
            self._server.listen(None)
        return code


class _Server:
    """The process that forks, seen from the one that asks."""

    _running: dict[tuple[int, int], _Server] = {}

    def __init__(self) -> None:
        self._socket, its_own = socket.socketpair()
        self.exit_codes: dict[int, int] = {}
        environ = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # a second thread would not survive a fork
        command = [sys.executable, *OPTIONS, str(Path(__file__).absolute()), str(its_own.fileno())]
        self._process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, pass_fds=[its_own.fileno()])
        its_own.close()
        atexit.register(self.stop)

    @classmethod
    def get(cls, number: int) -> _Server:
        key = (os.getpid(), number)
        if key not in cls._running:
            cls._running[key] = cls()
        return cls._running[key]

    def start(self, command: Sequence[str], env: Mapping[str, str], output: IO[str]) -> int:
        with tempfile.TemporaryFile() as job:
            job.write(pickle.dumps((list(command), dict(env), os.getcwd())))
            job.flush()
            socket.send_fds(self._socket, [b"j"], [job.fileno(), output.fileno()])
            while (pid := self.listen(None)) is None:
                pass
        return pid

    def listen(self, seconds: float | None) -> int | None:
        """Take what the server says within so many seconds; return the pid of a process that has started."""
        while select.select([self._socket], [], [], seconds)[0]:
            message = self._socket.recv(_MESSAGE.size, socket.MSG_WAITALL)
            if not message:
                raise RuntimeError(f"the process that forks those of jobs has ended, with status {self._process.wait()}")
            pid, status = _MESSAGE.unpack(message)
            if status == _STARTED:
                self.exit_codes.pop(pid, None)  # of an earlier process of that number
                return int(pid)
            self.exit_codes[pid] = os.waitstatus_to_exitcode(status)
            seconds = 0
        return None

    def stop(self) -> None:
        self._socket.close()
        self._process.wait()


def serve(connection: socket.socket) -> dict[str, Any]:
    """Fork a process for each job that comes, until nobody asks any more. Returns the job, in its process; the server never returns."""
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([connection, wake], [], [])
        if wake in readable:
            wake.recv(4096)
            _report_the_dead(connection)
        if connection in readable:
            data, descriptors, _, _ = socket.recv_fds(connection, 1, 2)
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


def _report_the_dead(connection: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection.sendall(_MESSAGE.pack(pid, status))


def _become(job: int, output: int) -> dict[str, Any]:
    """Be the process of the job; return the namespace of its ``__main__``, with what is to be executed in it."""
    os.setsid()
    with os.fdopen(job, "rb") as file:
        file.seek(0)
        command, environ, folder = pickle.load(file)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    if environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = command[0]
    return vars(main)


if __name__ == "__main__":
    import torch.distributed.fsdp

    import accelkit
    import accelkit.runtime  # noqa: F401

    namespace = serve(socket.socket(fileno=int(sys.argv[1])))
    torch._import_device_backends()
    exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), namespace)
