"""What processes of one group do together, as test_several_processes.py asks for: ``in_one_group.py SCENARIO FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from worlds import runtime, world

from accelkit import CheckpointError


def resuming(folder):
    """Rank 0 decides for all, also where another process sees another folder."""
    world(2, resume_apart, folder)


def resume_apart(env, folder):
    rt = runtime(env)
    rt.prepare(nn.Linear(2, 2))
    mine = folder / f"of-{env.global_rank}"
    assert not rt.resume(mine)
    step = rt.save_state(folder / "of-0")
    assert rt.resume(folder / "of-0")
    with pytest.raises(CheckpointError, match="(?s)of-1.*rank 1"):
        rt.resume(mine)
    step.rename(folder / "moved") if rt.is_main_process else None
    rt.wait_for_everyone()
    if not rt.is_main_process:
        (folder / "moved").rename(folder / "of-1")
    rt.wait_for_everyone()
    assert not rt.resume(mine), "there is one where rank 1 looks"
    rt.teardown()


def two_runtimes(folder):
    """The process group lasts as long as one of the Runtimes that use it."""
    world(2, share_a_group, folder)


def share_a_group(env, folder):
    first, second = runtime(env), runtime(env)
    one = torch.ones(1)
    assert first.reduce(one).item() == second.reduce(one).item() == 2
    first.teardown()
    assert second.reduce(one).item() == 2
    assert first.reduce(one).item() == 2, "it starts anew, and joins again"
    second.teardown()
    assert torch.distributed.is_initialized()
    first.teardown()
    first.teardown()
    assert not torch.distributed.is_initialized()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.distributed.destroy_process_group()


SCENARIOS = {function.__name__: function for function in (resuming, two_runtimes)}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
