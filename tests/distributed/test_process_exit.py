"""A process that has done its work ends with status 0, and one that forks gets a worker that starts, whatever torch's threads are at."""

from __future__ import annotations

import sys

import pytest
import ranks


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux can a process see what its threads are at")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_thread_that_is_not_done_does_not_abort_the_process(strategy):
    assert ranks.run("exit_program.py", 2, strategy) == ["done\n"] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux can a process see what its threads are at")
@pytest.mark.skipif(sys.version_info >= (3, 11, 10), reason="this Python forks whatever its threads are at")
def test_no_thread_is_at_work_when_workers_are_forked():
    assert ranks.run("fork_program.py", 2) == ["4 [{'S'}]\n"] * 2
