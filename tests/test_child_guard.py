"""What the guard process kills when its parent has ended. Here, the guard's program runs in the process of the test."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import subprocess
import sys

import pytest

from accelkit import child_guard

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="this system has no process groups")
FORKS = "import os; os.fork(); print(flush=True); __import__('time').sleep(600)"


@pytest.fixture
def groups():
    """Two process groups of two processes each. The processes of a group have one pipe, which is closed when both have ended."""
    leaders = [subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, start_new_session=True) for _ in range(2)]
    for leader in leaders:
        assert leader.stdout.read(2) == b"\n\n"
    yield leaders
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)  # not reaped until now, so that its process ID is still its own
        leader.wait()
        leader.stdout.close()


def test_groups_that_are_left_are_killed_and_others_are_not(groups, monkeypatch):
    left, removed = groups
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"+{left.pid}\n+{removed.pid}\n-{removed.pid}\n+{removed.pid}"))  # cut off by the end
    child_guard.main()
    assert left.stdout.read() == b"", "the whole group has ended"
    assert select.select([removed.stdout], [], [], 0.5)[0] == []


def test_a_process_that_leads_no_group_yet_is_killed_alone():
    """It has been started and has not called setsid yet, so it is in the group of its parent."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        child_guard.kill_group(process.pid)
        assert process.wait(timeout=60) == -signal.SIGKILL
        child_guard.kill_group(process.pid)  # it has ended already
    finally:
        process.kill()
