"""What each rank does in test_agreement.py when ranks have different options: ``options_program.py ACCELERATOR``."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

import accelkit
from accelkit_builtin.strategies.ddp import DDPOptions, DDPStrategy
from accelkit_builtin.strategies.fsdp import FSDPOptions, FSDPStrategy
from accelkit_builtin.strategies.parallel import ParallelOptions, ParallelStrategy

rank = int(os.environ["RANK"])


def mine(*values):
    """The value of this rank."""
    return values[rank]


DIFFERENT = {
    "sizes": ParallelStrategy(mine(ParallelOptions(), ParallelOptions(tensor=2, shard=1))),
    "plans": ParallelStrategy(
        ParallelOptions(
            tensor=2,
            plan=mine(
                {"up": ColwiseParallel(), "norm": SequenceParallel()},
                {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()},
            ),
        )
    ),
    "no plan": ParallelStrategy(ParallelOptions(tensor=2, plan=mine(None, {"up": ColwiseParallel()}))),
    "sharding": ParallelStrategy(ParallelOptions(fsdp=FSDPOptions(wrap=mine("root", [torch.nn.Linear, torch.nn.LayerNorm])))),
    "fsdp": FSDPStrategy(FSDPOptions(param_dtype=mine("bfloat16", None))),
    "ddp": DDPStrategy(DDPOptions(sync_batch_norm=mine(False, True), communication_hook=mine("power_sgd", torch.nn.Module.forward))),
}
for name, strategy in DIFFERENT.items():
    rt = accelkit.Runtime(sys.argv[1], strategy=strategy)
    with pytest.raises(accelkit.ContradictionError) as caught:
        _ = rt.device
    print("REFUSED", f"{name}:", str(caught.value).replace("\n", " | "), flush=True)
    rt.teardown()
rt = accelkit.Runtime(
    sys.argv[1], strategy=DDPStrategy(DDPOptions(communication_hook=mine(lambda *_: 0, lambda *_: 1), communication_state=object()))
)
assert rt.reduce(torch.ones(1, device=rt.device)).item() == 2, "neither addresses nor a state of each process are compared"
rt.teardown()
print("done")
