"""A process that has done its work ends with status 0, and one that forks gets a worker that starts, whatever torch's threads are at."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import ranks


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux can a process see what its threads are at")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_thread_that_is_not_done_does_not_abort_the_process(strategy):
    assert ranks.run("exit_program.py", 2, strategy) == ["done\n"] * 2


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux can a process see what its threads are at")
def test_a_thread_may_wait_long_for_a_processor():
    processor = min(os.sched_getaffinity(0))
    busy = [f"import os; os.sched_setaffinity(0, {{{processor}}})", "while True: pass"]
    others = [subprocess.Popen([sys.executable, "-c", "\n".join(busy)], start_new_session=True) for _ in range(14)]
    try:
        assert ranks.run("exit_program.py", 2, "fsdp", str(processor)) == ["done\n"] * 2
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux can a process see what its threads are at")
@pytest.mark.skipif(sys.version_info >= (3, 11, 10), reason="this Python forks whatever its threads are at")
def test_no_thread_is_at_work_when_workers_are_forked():
    assert ranks.run("fork_program.py", 2) == ["4 [{'S'}]\n"] * 2
