"""One process of several fails to save: every process that is alive says which one and why, and nothing is lost.

``python failing_save_program.py FOLDER``. A failed assertion is a failed run.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import pytest
import torch
from forked_ranks import runtime, world
from torch import nn

from accelkit import CheckpointError
from accelkit.runtime.checkpoints import checkpoint

STRATEGY = "fsdp"


class Fragile:
    """A registered object whose state can be made bad on one process."""

    def __init__(self):
        self.is_bad = self.is_raising = False

    def state_dict(self):
        if self.is_raising:
            raise ValueError("no state today")
        return {"value": object() if self.is_bad else 1}

    def load_state_dict(self, state):
        if self.is_raising:
            raise ValueError("no such state")


def failure(rt, folder, **arguments):
    """The text of the error with which saving fails."""
    with pytest.raises(CheckpointError) as caught:
        save_and_wait(rt, folder, **arguments)
    return str(caught.value)


def save_and_wait(rt, folder, **arguments):
    rt.save_state(folder, **arguments)
    rt.wait_for_saves()


def fail_and_go_on(env, folder):
    rt = runtime(env, STRATEGY)
    rt.prepare(nn.Linear(300, 300))
    fragile = Fragile()
    rt.register_for_checkpointing(fragile)
    rt.save_state(folder)
    is_bad = env.global_rank == 1

    fragile.is_bad = is_bad
    text = failure(rt, folder)
    assert "custom_0.value" in text.splitlines()[0], text
    assert "rank 1 (" in text, text
    assert "builtins.object" in text
    fragile.is_bad = False
    assert not (folder / "step-1.tmp").exists()

    fragile.is_raising = is_bad
    text = failure(rt, folder)
    assert "rank 1 (" in text, text
    assert "ValueError: no state today" in text
    with pytest.raises(CheckpointError, match=r"rank 1 \(.*no such state"):
        rt.load_state(folder)
    fragile.is_raising = False

    for is_async in (False, True):
        if is_bad:  # a disk that is full after 10,000 bytes
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        text = failure(rt, folder, is_async=is_async)
        assert str(folder) in text.splitlines()[0], text
        assert "rank 1 (" in text, text
        assert "File too large" in text, text
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    text = failure(rt, folder if env.global_rank == 0 else folder.with_name("elsewhere"))
    assert "rank 1 (" in text, text
    assert f"rank 0 was given {folder}, and rank 1 was given {folder.with_name('elsewhere')}, where" in text, text
    assert "what to do: give every process the same folder" in text

    assert rt.save_state(folder) == folder / "step-1"
    rt.load_state(folder)
    rt.teardown()


def die(env, folder, victim):
    rt = runtime(env, STRATEGY)
    rt.prepare(nn.Linear(30, 30))
    rt.save_state(folder)
    if env.global_rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    text = failure(rt, folder, is_async=victim == 1)
    assert f"rank {victim}: " in text.partition("  why: ")[2], text


def main(folder):
    world(2, fail_and_go_on, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["LATEST", "step-0", "step-1"]
    for victim in (0, 1):
        assert world(3, die, folder, victim, may_die=(victim,)) == [victim]
    steps = sorted(folder.glob("step-*[0-9]"))
    assert len(steps) == 4, "each save before a death is there"
    for step in steps:
        checkpoint.load(step)


if __name__ == "__main__":
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    main(Path(sys.argv[1]))
