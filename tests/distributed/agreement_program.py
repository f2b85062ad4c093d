"""What each rank does in test_agreement.py: what one process asks for or runs into, all processes do at the same step."""

from __future__ import annotations

import json
import warnings

import torch

import accelkit

rt = accelkit.Runtime("fake_xpu", strategy="ddp")
rank = rt.process_index
found: dict[str, object] = {}

steps = []
for step in range(6):
    if (rank, step) in ((1, 2), (0, 4)):
        rt.set_trigger()
    if rt.check_trigger():
        steps.append(step)
found["triggered"] = steps

rt.seed_everything(3)
found["equal"] = [torch.rand(1).item(), torch.rand(1, device=rt.device).item()]
assert rt.seed_everything(3, per_process=True) == 3 + rank
found["differing"] = [torch.rand(1).item(), torch.rand(1, device=rt.device).item()]


def attempt(batch_size: int) -> tuple[int, int]:
    if rank == 1 and batch_size > 8:
        torch.empty(1 << 50, device=rt.device)
    return batch_size, rt.gradient_accumulation_steps


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    found["batch size"] = rt.find_executable_batch_size(attempt, 32)
    try:
        rt.find_executable_batch_size(lambda size: torch.empty(1 << 50 if rank else 1, device=rt.device), 2)
    except accelkit.UnsupportedError as error:
        found["nothing fits"] = error.why
print(json.dumps(found))
rt.teardown()
