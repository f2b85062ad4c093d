"""Starting ``accelkit launch`` as a user does, and looking for what it left running."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

GLOO = """
import datetime, os, signal, sys, time
import torch, torch.distributed as dist
seconds = float(os.environ.get("ACCELKIT_TIMEOUT", 60))
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
rank = dist.get_rank()
def total():
    value = torch.tensor(float(rank + 1))
    dist.all_reduce(value)
    return value.item()
"""
FAMILY = """
import os, signal, subprocess, sys
def note(pid):
    open(os.path.join(os.environ["NOTES"], str(pid)), "w").close()
note(os.getpid())
def family():
    sleeping = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
    note(subprocess.Popen(sleeping).pid)
    note(subprocess.Popen(sleeping, start_new_session=True).pid)
    if (child := os.fork()) == 0:  # a daemon, as they were taught: its parent goes at once
        os.setsid()
        note(subprocess.Popen(sleeping).pid)
        os._exit(0)
    os.waitpid(child, 0)
"""


class Launch:
    """One ``accelkit launch``, running."""

    def __init__(self, folder: Path, *arguments: object, **environ: str) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "accelkit", "launch", *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ | {"NOTES": str(self.notes), "TMPDIR": str(folder)} | environ,
            start_new_session=True,
        )
        self.out = self.err = ""

    def wait(self, code: int | None = 0, seconds: float = 120) -> Launch:
        """Wait for its end. Nothing that noted itself may be alive then."""
        try:
            self.out, self.err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
            pytest.fail(f"the launch hung\n{self.out}\n{self.err}")
        if code is not None:
            assert self.process.returncode == code, self.out + self.err
        assert not self.alive()
        return self

    def until_noted(self, count: int, seconds: float = 60) -> None:
        """Wait until so many processes have noted themselves."""
        deadline = time.monotonic() + seconds
        while len(list(self.notes.iterdir())) < count:
            assert time.monotonic() < deadline, "the processes did not start"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def alive(self) -> list[int]:
        """Of those that noted themselves, who runs."""
        pids = [int(path.name) for path in self.notes.iterdir() if path.name.isdigit()]
        return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]

    def report(self) -> str:
        """What the launcher itself said at the end."""
        return self.err[self.err.index("accelkit launch: rank ") :]

    def logs(self) -> Path:
        found = re.search(r"logs: (\S+?)(/restart-\d+/|$)", self.err, re.MULTILINE)
        assert found, self.err
        return Path(found[1])
