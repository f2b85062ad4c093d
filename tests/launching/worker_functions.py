"""What processes do that are started from Python: functions of a module, for pickle's sake."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import torch


def train(runtime, parts, name, steps):
    """A few steps; every process sees other data. What comes back is rank 0's."""
    model, optimizer = runtime.prepare(parts["model"], parts["optimizer"])
    for step in range(steps):
        optimizer.zero_grad()
        torch.manual_seed(10 * step + runtime.process_index)
        loss = model(torch.rand(4, 3, device=runtime.device)).pow(2).mean()
        runtime.backward(loss)
        optimizer.step()
    environ = {key: os.environ[key] for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    return {"name": name, "loss": loss, "device": str(runtime.device), "processes": runtime.num_processes, "environ": environ}


def fail(runtime, how, notes):
    """Rank 1 fails so; the other waits for it. Each notes itself and a child of its own."""
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for pid in (os.getpid(), sleeping.pid):
        (Path(notes) / str(pid)).touch()
    runtime.wait_for_everyone()
    if runtime.process_index == 1 and how != "sleep":
        if how == "raise":
            raise ZeroDivisionError("mine")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(9)
    if how == "sleep":
        time.sleep(600)
    runtime.wait_for_everyone()


def exit_slowly(runtime, notes):
    """Rank 1 closes its connections, and ends half a second after rank 0, which lost it."""
    (Path(notes) / f"{runtime.process_index}-{os.getpid()}").touch()
    runtime.wait_for_everyone()
    if runtime.process_index == 0:
        runtime.wait_for_everyone()
    other = psutil.Process(int(next(Path(notes).glob("0-*")).name[2:]))
    connections = [one for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    for connection in connections:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as end:
            end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(psutil.NoSuchProcess):
        while other.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
    time.sleep(0.5)  # the launcher sees the end of rank 0 within this time
    os._exit(0)


def ignore_sigterm(runtime):
    """Rank 0 ignores the signal that it gets when rank 1 has failed."""
    if runtime.process_index == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    runtime.wait_for_everyone()
    if runtime.process_index == 1:
        raise ZeroDivisionError("mine")
    time.sleep(600)


def give(runtime, result):
    """Return something."""
    return result()


def unpicklable():
    """What cannot come back."""
    return lambda: None
