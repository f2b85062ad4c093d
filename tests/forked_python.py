"""Run in place of an interpreter: it has its program run by a process that ``fork_server.py`` forks, and ends as that process does.

The files of this program are passed on, and so are the signals that it receives. Options and environment variables that the server's
interpreter has read already, and cannot read again, are left to a real interpreter.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence

READ_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "TORCH_", "PYTORCH_")
"""Prefixes of the variables that the interpreter or torch read when they start."""
READ_LATER = (
    "PYTHONPATH", "PYTHONFAULTHANDLER", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_NCCL_", "TORCH_DISABLE_SHARE_RDZV_",
    "PYTORCH_NVML_BASED_CUDA_CHECK",  # Lightning sets it in the process of the tests when it is imported
)  # fmt: skip
FORWARDED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCONT")
_LENGTH, _MESSAGE = struct.Struct("I"), struct.Struct("ii")


def main(python: str, server: str, variables: Mapping[str, str]) -> None:
    """Run ``sys.argv``, in which the first word is ``python`` or a program in its folder.

    Args:
        python: The real interpreter.
        server: The socket of the server.
        variables: The environment of the server.
    """
    folder, name = os.path.split(os.path.abspath(sys.argv[0]))
    arguments = sys.argv[1:] if name.startswith("python") else [os.path.join(os.path.dirname(python), name), *sys.argv[1:]]
    if not _can_be_forked(arguments) or read_at_start(os.environ) != dict(variables):
        os.execv(python, [python, *arguments])
    files = [int(number) for number in os.listdir("/dev/fd") if _is_inherited(int(number))]
    signals = [getattr(signal, one) for one in FORWARDED]
    job = {
        "arguments": arguments,
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "files": files,
        "executable": os.path.join(folder, "python"),
        "ignored": [number for number in signals if signal.getsignal(number) is signal.SIG_IGN],
        "is_finalized": False,
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server)
        pid = start(connection, job, files)
        for number in signals:
            if number not in job["ignored"]:
                signal.signal(number, lambda number, _: os.kill(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        for number in files:  # the reader of a pipe that the process closes must notice it
            os.close(number)
        message = connection.recv(_MESSAGE.size, socket.MSG_WAITALL)
        if not message:
            os._exit(70)
        code = os.waitstatus_to_exitcode(_MESSAGE.unpack(message)[1])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def start(connection: socket.socket, job: Mapping[str, object], files: Sequence[int]) -> int:
    """Send a job to a server, and return the pid of its process."""
    text = json.dumps(job).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(text))], files)
    connection.sendall(text)
    message = connection.recv(_MESSAGE.size, socket.MSG_WAITALL)
    return int(_MESSAGE.unpack(message)[0])


def read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter with torch reads when it starts."""
    return {name: value for name, value in environ.items() if name.startswith(READ_AT_START) and not name.startswith(READ_LATER)}


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # the folder that was listed
        return False


def _can_be_forked(arguments: Sequence[str]) -> bool:
    """Return whether a server knows the options. A program that is read from standard input is left to a real interpreter."""
    options = [one for one in arguments if one.startswith("-")] if not arguments else arguments[: _first(arguments) + 1]
    return bool(options) and all(one in ("-P", "-u", "-c", "-m") for one in options if one.startswith("-"))


def _first(arguments: Sequence[str]) -> int:
    return next((number for number, one in enumerate(arguments) if one not in ("-P", "-u")), len(arguments) - 1)
