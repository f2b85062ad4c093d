"""The processes of one machine, as the agent starts, watches and ends them, in a launcher of their own: it ends all its children."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.smoke

START = """
import os, signal, sys, time
from pathlib import Path
import psutil
from accelkit.launching import failures, local_workers
from accelkit.launching.log_tee import Screen
folder = Path(sys.argv[1])
def start(count):
    environs = {rank: os.environ | {"RANK": str(rank)} for rank in range(count)}
    program = local_workers.Program(str(folder / "program.py"))
    return local_workers.LocalRanks(program, folder, environs, [Screen(sys.stdout.buffer), Screen(sys.stderr.buffer)])
"""


@pytest.fixture
def run(tmp_path):
    """A function that runs the code of a launcher, in which ``start(count)`` starts processes of ``program``, and returns its output."""

    def run_launcher(launcher: str, program: str) -> str:
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, "-c", START + launcher, str(tmp_path)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout

    return run_launcher


def test_a_system_without_waitid_reports_the_same_end(run):
    launcher = """
vars(os).pop("waitid", None)  # macOS has none
began = time.time()
ranks = start(1)
while not ranks.have_failed():
    time.sleep(0.01)
ranks.end(signal.SIGTERM, 5.0)
print([(str(ending), ending.sent, began < ending.at < time.time()) for ending in ranks.endings])
"""
    assert run(launcher, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)") == "[('killed by SIGKILL', None, True)]\n"


def test_ending_the_processes_continues_after_it_was_interrupted(run):
    launcher = """
def interrupt():
    raise KeyboardInterrupt
ranks = start(1)
while not (folder / "started").exists():
    time.sleep(0.01)
try:
    ranks.end(signal.SIGTERM, 30.0, interrupt)
except KeyboardInterrupt:
    (folder / "interrupted").touch()
ranks.end(signal.SIGTERM, 30.0)
print([str(ending) for ending in ranks.endings], (folder / "saved").exists())
"""
    program = """
import signal, sys, time
from pathlib import Path
folder = Path(__file__).parent
def save(*_):
    while not (folder / "interrupted").exists():
        time.sleep(0.01)
    (folder / "saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
(folder / "started").touch()
time.sleep(600)
"""
    assert run(launcher, program) == "['was running, and was ended with SIGTERM'] True\n"


def test_if_one_process_cannot_be_started_none_is_left(run):
    launcher = """
(folder / "rank-1").touch()  # where the folder of its logs should be
try:
    start(2)
except FileExistsError:
    print(psutil.Process().children(recursive=True))
"""
    assert run(launcher, "import time; time.sleep(600)") == "[]\n"


def test_a_process_that_does_not_exit_after_its_error_has_failed(run):
    launcher = """
local_workers._UNWINDING_SECONDS = 0.5
ranks = start(1)
while not ranks.have_failed():
    time.sleep(0.01)
ranks.end(signal.SIGTERM, 5.0)
cause = failures.first(ranks.endings)
print(cause, cause.sent.name, cause.shell_code)
"""
    program = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nraise ValueError('mine')"
    assert run(launcher, program) == "ValueError: mine SIGTERM 1\n"
