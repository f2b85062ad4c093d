"""What each rank does in test_host_backend.py: train with a strategy, and run every collective, in a group that sends through the host."""

import json
import os
import sys
import time

import accelkit_fake_xpu.torch_backend  # noqa: F401
import torch
import torch.distributed as dist

import accelkit
from accelkit.runtime.collectives import host_backend


def collectives(device, group):
    """The results of the collectives of a group, with tensors on ``device``, by name."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def own(*shape):
        return (torch.arange(float(torch.Size(shape).numel())).reshape(shape) + 10 * rank).to(device)

    found = {}
    found["allreduce_coalesced"] = [own(2), own(2, 2)]
    group.allreduce_coalesced(found["allreduce_coalesced"]).wait()
    reduced = own(3)
    dist.reduce(reduced, 1, group=group)
    found["reduce"] = [reduced] if rank == 1 else []  # no other rank has a result
    found["gather"] = [torch.zeros(3, 2, device=device).t() for _ in range(size)] if rank == 1 else []
    dist.gather(own(2, 3), found["gather"] or None, 1, group)
    found["scatter"] = [torch.zeros(2, device=device)]
    dist.scatter(found["scatter"][0], [own(2), -own(2)] if rank == 1 else None, 1, group)
    found["all_gather"] = [torch.zeros(2, device=device) for _ in range(size)]
    dist.all_gather(found["all_gather"], own(2), group)
    found["reduce_scatter"] = [torch.zeros(2, device=device)]
    dist.reduce_scatter(found["reduce_scatter"][0], [own(2), -own(2)], group=group)
    found["all_to_all_single"] = [torch.zeros(4 - 2 * rank, device=device)]
    dist.all_to_all_single(found["all_to_all_single"][0], own(3), [2 - rank] * size, [2, 1], group)
    found["send and recv"] = [torch.zeros(2, 2, device=device)]
    work = dist.isend(own(2, 2), 1 - rank, group)
    dist.recv(found["send and recv"][0], 1 - rank, group)
    work.wait()
    return {name: [tensor.tolist() for tensor in tensors] for name, tensors in found.items()}


def transfer():
    """Whether a transfer is complete, before and after ``wait``."""
    tensor = torch.zeros(2, device=rt.device)
    work = dist.irecv(tensor, 0) if rank == 1 else dist.isend(tensor, 1)
    return [work.is_completed(), work.wait(), work.is_completed()]


def all_to_all():
    """What ``collectives`` sends in one tensor, in a list. gloo cannot do that, so it is not compared with gloo."""
    sent = torch.arange(3.0, device=rt.device) + 10 * rank
    received = [torch.zeros(1, 2 - rank, device=rt.device) for _ in range(size)]
    dist.all_to_all(received, [sent[:2], sent[2:]])
    return torch.cat(received, dim=1).tolist()


def has_waited():
    """Whether rank 0 waits at a barrier for rank 1, which comes late."""
    store = dist.group.WORLD.get_group_store()
    if rank == 1:
        time.sleep(0.5)
        store.set("rank 1 has come", "")
    dist.barrier()
    return rank == 1 or store.check(["rank 1 has come"])


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
dist.group.WORLD.reduce_scatter_single_coalesced(halves := [torch.zeros_like(part), torch.zeros_like(part)], [whole, -whole])
dist.reduce_scatter_tensor(part, torch.ones_like(whole))
work = dist.all_reduce(total := torch.ones(2, device=rt.device), async_op=True)
work.wait()
found = {
    "weights": {key: value.tolist() for key, value in state.items()},
    "gathered": whole[:, 0].tolist(),
    "again": again[:, 0].tolist(),
    "half": half[:, 0].tolist(),
    "halves": [half[:, 0].tolist() for half in halves],
    "scattered": part[:, 0].tolist(),
    "total": total.tolist(),
    "is_completed": work.is_completed(),
    "future": work.get_future().value()[0].tolist(),
    "object": rt.broadcast({"from": rank}, 1),
    "through the host": collectives(rt.device, dist.group.WORLD),
    "through gloo": collectives("cpu", dist.new_group(backend="gloo")),
    "all_to_all": all_to_all(),
    "transfer": transfer(),
    "has_waited": has_waited(),
}
print("result:", json.dumps(found))
