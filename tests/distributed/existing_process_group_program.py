"""A program that makes the process group itself, and then a Runtime: ``existing_process_group_program.py BACKENDS FOLDER``."""

import json
import os
import signal
import sys

import accelkit_fake_xpu.torch_backend  # noqa: F401
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import accelkit

torch.fake_xpu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group(sys.argv[1])
rt = accelkit.Runtime("fake_xpu")
try:
    rt.wait_for_everyone()
except accelkit.UnsupportedError as error:
    print("refused:", " ".join(str(error).split()))
    sys.exit()
rank = rt.process_index
found = {"first": rt.is_preempted()}
if rank == 1:
    os.kill(os.getpid(), signal.SIGTERM)
found["told"] = rt.is_preempted()
found["objects"] = rt.gather_for_metrics([{"rank": rank}])
loader = rt.prepare(DataLoader(range(8), batch_size=2, shuffle=True))
found["samples"] = sorted(number for batch in rt.gather_for_metrics([batch.tolist() for batch in loader]) for number in batch)
model = rt.prepare(torch.nn.Linear(2, 1))
optimizer = rt.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
rt.backward(model(torch.full((1, 2), float(rank), device=rt.device)).sum())
optimizer.step()
rt.save_state(sys.argv[2])
with torch.no_grad():
    saved = [parameter.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.zero_()
rt.load_state(sys.argv[2])
found["loaded"] = all(torch.equal(one, other) for one, other in zip(saved, model.parameters(), strict=True))
print("result:", json.dumps(found))
