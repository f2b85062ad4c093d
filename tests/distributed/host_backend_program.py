"""What each rank does in test_host_backend.py: train with a strategy, in a group that sends through the host."""

import json
import os
import sys

import accelkit_fake_xpu.torch_backend  # noqa: F401
import torch
import torch.distributed as dist

import accelkit
from accelkit.runtime.collectives import host_backend

torch.fake_xpu.set_device(int(os.environ["LOCAL_RANK"]))
host_backend.register("host", "fake_xpu")
dist.init_process_group("cpu:gloo,fake_xpu:host")
rt = accelkit.Runtime("fake_xpu", strategy=sys.argv[1])
rank, size = rt.process_index, rt.num_processes
torch.manual_seed(0)
model = rt.prepare(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)))
optimizer = rt.prepare(torch.optim.SGD(model.parameters(), lr=0.01))
for _ in range(3):
    rt.backward(model(torch.full((2, 4), rank + 1.0, device=rt.device)).pow(2).sum())
    optimizer.step()
    optimizer.zero_grad()
state = rt.get_state_dict(model)
whole, part = torch.zeros(2 * size, 3, device=rt.device), torch.full((2, 3), float(rank), device=rt.device)
dist.all_gather_into_tensor(whole, part)
dist.group.WORLD.all_gather_single(again := torch.zeros_like(whole), part)  # without options
dist.group.WORLD.reduce_scatter_single(half := torch.zeros_like(part), torch.ones_like(whole))
dist.reduce_scatter_tensor(part, torch.ones_like(whole))
work = dist.all_reduce(total := torch.ones(2, device=rt.device), async_op=True)
work.wait()
found = {
    "weights": {key: value.tolist() for key, value in state.items()},
    "gathered": whole[:, 0].tolist(),
    "again": again[:, 0].tolist(),
    "half": half[:, 0].tolist(),
    "scattered": part[:, 0].tolist(),
    "total": total.tolist(),
    "is_completed": work.is_completed(),
    "future": work.get_future().value()[0].tolist(),
    "object": rt.broadcast({"from": rank}, 1),
}
print("result:", json.dumps(found))
