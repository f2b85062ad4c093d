"""What processes of one group do together, as test_distributed_checkpoint.py asks for: ``process_group_program.py SCENARIO FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from forked_ranks import runtime, world
from torch import nn
from torch.utils.data import DataLoader

import accelkit
from accelkit import CheckpointError, CollectiveError


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
    with pytest.raises(CheckpointError, match="(?s)different folders.*rank 1.*rank 0 was given .*of-0, and rank 1 was given .*of-1"):
        rt.resume(mine)
    step.rename(folder / "moved") if rt.is_main_process else None
    rt.wait_for_everyone()
    if not rt.is_main_process:
        (folder / "moved").rename(folder / "of-1")
    rt.wait_for_everyone()
    with pytest.raises(CheckpointError, match="the checkpoints in .*of-0 are gone"):  # although there is one where rank 1 looks
        rt.resume(mine)
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


def calls_apart(folder):
    """Which loader and which epoch begins is part of the call, and a save is named as one."""
    world(2, call_apart, folder)


def call_apart(env, folder):
    rt = runtime(env, process_group=accelkit.ProcessGroupOptions(timeout=5))
    training, validation = rt.prepare(*(DataLoader(range(8), batch_size=2) for _ in range(2)))
    with pytest.raises(CollectiveError, match="called different collectives") as caught:
        next(iter(validation if rt.is_main_process else training))  # as `if rt.is_main_process:` around a validation does
    assert "rank 0: call" in caught.value.why
    assert all(f"the start of epoch 0 of prepared loader {number}" in caught.value.why for number in range(2))
    with pytest.raises(CollectiveError, match="called different collectives") as caught:
        rt.gather(torch.ones(1)) if rt.is_main_process else next(iter(training))
    assert "gather of float32[1]" in caught.value.why
    assert "the start of epoch" in caught.value.why
    for saved_before in (False, True):
        with pytest.raises(CheckpointError if rt.is_main_process else CollectiveError, match="called different collectives") as caught:
            rt.save_state(folder) if rt.is_main_process else rt.wait_for_everyone()
        assert "save_state" in caught.value.why
        assert "wait_for_everyone" in caught.value.why
        assert rt.save_state(folder).name == f"step-{int(saved_before)}"
    rt.teardown()


SCENARIOS = {function.__name__: function for function in (resuming, two_runtimes, calls_apart)}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
