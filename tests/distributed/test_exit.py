"""A process that has done its work ends with status 0, whatever torch's threads are at."""

from __future__ import annotations

import sys

import pytest
import ranks


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux can a process see what its threads are at")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_thread_that_is_not_done_does_not_abort_the_process(strategy):
    assert ranks.run("on_exit.py", 2, strategy) == ["done\n"] * 2
