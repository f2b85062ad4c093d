"""A server that forks interpreters in which torch is already imported: ``fork_server.py SOCKET [MODULE ...]``.

A client connects to the socket and sends a ``Job`` as JSON, with the files that the process is to have. It is told the process's pid,
and later its wait status. If a client closes its connection, its process and everything in its group is killed. The server ends when
its standard input is closed.

In a forked process, torch and modules that need it are not in ``sys.modules`` until the program imports one of them. A program can
therefore be tested not to import torch, and torch imports its backends with the program's environment, as in a separate interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import faulthandler
import fcntl
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import multiprocessing.process
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WITHOUT_TORCH = (
    "packaging.version",
    "pluggy",
    "rich.console",
    "accelkit.cli.status_rows",
    "accelkit.selection",
    "accelkit.discovery.loading",
    "accelkit.discovery.probing",
    "accelkit.discovery.verdict_cache",
    "accelkit.discovery.catalog",
    "accelkit.discovery.import_side_effects",
)
"""Modules that are imported before torch, and stay in ``sys.modules``."""
WITH_TORCH = ("torch.distributed.fsdp", "torch._dynamo", "torch.distributed.elastic.agent.server.api")
"""Modules that are imported with torch. The first optimizer of a program imports ``torch._dynamo``."""
LENGTH, MESSAGE = struct.Struct("I"), struct.Struct("ii")
STARTED = -1
MOST_FILES = 100


@dataclasses.dataclass(frozen=True)
class Job:
    """A process to fork.

    Attributes:
        arguments: Those of ``python``: a script, or ``-c`` or ``-m``, after ``-P`` and ``-u``.
        environ, folder: The environment and the working directory.
        files: The numbers that the files sent with the job are to have.
        executable: The value of ``sys.executable``.
        ignored: Signals that are ignored.
        is_finalized: Whether the interpreter is finalized at the end, which takes half a second with torch. If not, the process ends
            after its exit functions.
    """

    arguments: Sequence[str]
    environ: dict[str, str]
    folder: str
    files: Sequence[int]
    executable: str
    ignored: Sequence[int] = ()
    is_finalized: bool = True


class _Imported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Puts modules that have been imported already back into ``sys.modules`` as soon as one of them is imported."""

    def __init__(self, modules: dict[str, types.ModuleType]) -> None:
        self._modules = modules
        self._spec: importlib.machinery.ModuleSpec | None = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self._modules:
            return None
        self._spec = self._modules[name].__spec__
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec
        sys.meta_path.remove(self)
        sys.modules.update(self._modules)
        torch: Any = sys.modules["torch"]
        if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
            torch._import_device_backends()


def import_modules(*needing_torch: str) -> None:
    """Import torch, and modules that need it. Then remove them from ``sys.modules``, until one of them is imported."""
    for name in WITHOUT_TORCH:
        importlib.import_module(name)
    for name in WITH_TORCH:
        importlib.import_module(name)
    kept = {name for name in sys.modules if name.partition(".")[0] not in ("torch", "torchgen", "functorch")}
    for name in needing_torch:
        importlib.import_module(name)
    hidden = [name for name in sys.modules if name not in kept and name.partition(".")[0] not in sys.stdlib_module_names]
    sys.meta_path.insert(0, _Imported({name: sys.modules.pop(name) for name in hidden}))


class _Server:
    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(100)
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._processes: dict[socket.socket, int] = {}

    def serve(self) -> dict[str, Any]:
        """Fork processes until standard input is closed. Returns only in the forked processes, with the namespace of ``__main__``."""
        signal.set_wakeup_fd(self._woken.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            for end in select.select([sys.stdin, self._listener, self._wake, *self._processes], [], [])[0]:
                if end is sys.stdin:
                    for connection in list(self._processes):
                        self._kill(connection)
                    os._exit(0)
                elif end is self._wake:
                    self._wake.recv(4096)
                    self._report_ended_processes()
                elif end is self._listener:
                    if (namespace := self._accept()) is not None:
                        return namespace
                elif end in self._processes:
                    self._kill(end)

    def _accept(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        length, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, MOST_FILES)
        if not length:  # the client asks whether the server has started
            connection.close()
            return None
        job = Job(**json.loads(connection.recv(LENGTH.unpack(length)[0], socket.MSG_WAITALL)))
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._listener, self._wake, self._woken, connection, *self._processes):
                end.close()
            return _become(job, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._processes[connection] = pid
        self._send(connection, pid, STARTED)
        return None

    def _report_ended_processes(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for connection in [end for end, pid in self._processes.items() if pid == ended[0]]:
                    self._send(connection, *ended)
                    del self._processes[connection]
                    connection.close()

    def _kill(self, connection: socket.socket) -> None:
        pid = self._processes.pop(connection)
        connection.close()
        for kill in (os.killpg, os.kill):  # it may not lead a group yet
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)

    def _send(self, connection: socket.socket, pid: int, status: int) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(MESSAGE.pack(pid, status))


def _become(job: Job, descriptors: list[int]) -> dict[str, Any]:
    """Set up this process for its job. Return the namespace of ``__main__``, in which the program must be executed."""
    os.setsid()
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 2 * max(job.files) + MOST_FILES) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(high, job.files, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for number in job.ignored:
        signal.signal(number, signal.SIG_IGN)
    os.chdir(job.folder)
    multiprocessing.process.ORIGINAL_DIR = job.folder  # read at import, and used for paths of the program
    os.environ.clear()
    os.environ.update(job.environ)
    if job.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.executable = job.executable
    if job.is_finalized:
        _IS_FINALIZED.append(True)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    _set_arguments(list(job.arguments), main)
    import accelkit

    accelkit.refresh()  # sys.path has changed, so other plugins may be installed
    return vars(main)


def _set_arguments(arguments: list[str], main: types.ModuleType) -> None:
    """Set ``sys.argv``, ``sys.path`` and the attributes of ``__main__`` as the interpreter does."""
    is_safe = False
    while arguments[0] in ("-P", "-u"):
        is_safe |= arguments[0] == "-P"
        if arguments.pop(0) == "-u":
            for stream in (sys.stdout, sys.stderr):
                assert isinstance(stream, io.TextIOWrapper)
                stream.reconfigure(write_through=True)
    sys.argv = arguments[1:] if arguments[0] == "-m" else arguments
    first = {"-c": "", "-m": os.getcwd()}.get(arguments[0], os.path.dirname(os.path.realpath(arguments[0])))
    _PROGRAM.append(arguments[0])
    if arguments[0] == "-c":
        _PROGRAM.append(arguments.pop(1))
    elif arguments[0] != "-m":
        vars(main)["__file__"] = os.path.abspath(arguments[0])
    python_path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [*([] if is_safe else [first]), *python_path]
    importlib.invalidate_caches()


def _run(namespace: dict[str, Any]) -> None:
    try:
        if _PROGRAM[0] == "-m":
            runpy._run_module_as_main(sys.argv[0])  # type: ignore[attr-defined] # what `python -m` calls
        elif _PROGRAM[0] == "-c":
            exec(_PROGRAM[1], namespace)
        else:
            exec(compile(Path(_PROGRAM[0]).read_bytes(), _PROGRAM[0], "exec"), namespace)
        _EXIT_CODE.append(0)
    except SystemExit as error:
        _EXIT_CODE.append(error.code if isinstance(error.code, int) else int(error.code is not None))
        raise
    except Exception:
        _EXIT_CODE.append(1)
        raise


def _end_early() -> None:
    """End this process. This is the exit function that is called last, because it is registered first."""
    if _EXIT_CODE and not _IS_FINALIZED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_EXIT_CODE[0])


_PROGRAM: list[str] = []
"""``-m``, a script, or ``-c`` and its program."""
_EXIT_CODE: list[int] = []
"""The exit code, when the program has ended."""
_IS_FINALIZED: list[bool] = []
"""Not empty if the interpreter is to be finalized."""


if __name__ == "__main__":
    atexit.register(_end_early)
    import_modules(*sys.argv[2:])
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()
    namespace = _Server(sys.argv[1]).serve()
    _run(namespace)
