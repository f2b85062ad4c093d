"""The program that each rank runs. It compares the results of collectives with the expected results, and DDP and FSDP2 with local training.

With DDP and FSDP2, each rank trains on its part of a batch. In local training, a rank trains a copy of the model by itself on the whole
batch. The arguments of the program are the backend and the file through which the processes find each other. A process that does not finish
within 100 seconds prints the stack of each of its threads and exits.
"""

import copy
import faulthandler
import os
import sys
import warnings

import accelkit_fake_xpu.torch_backend  # noqa: F401
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("fake_xpu", rank % 2)
everyone = torch.arange(size)


def of(number, *shape):
    return torch.full(shape or (2,), float(number), device=device)


def check(tensor, *expected):
    assert tensor.device == device
    assert tensor.flatten().tolist() == [float(value) for value in expected], (rank, tensor, expected)


def reductions():
    for op, expected in {"SUM": sum(range(1, size + 1)), "MAX": size, "MIN": 1, "AVG": (size + 1) / 2}.items():
        x = of(rank + 1)
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        check(x, expected, expected)
        with torch.inference_mode():
            x = of(rank + 1)
            dist.all_reduce(x, getattr(dist.ReduceOp, op))
            check(x, expected, expected)
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8):
        x = torch.ones(3, dtype=dtype, device=device)
        dist.all_reduce(x)
        assert x.dtype == dtype
        assert x.tolist() == [size] * 3
    x = of(rank, 2, 3).t()
    dist.all_reduce(x)
    check(x, *[everyone.sum()] * 6)
    for reduce, expected in ((dist.all_reduce, sum(range(1, size + 1))), (lambda x: dist.all_reduce(x, dist.ReduceOp.AVG), (size + 1) / 2)):
        table = of(rank + 1, 2, 2)
        reduce(table[:, 0])
        check(table, expected, rank + 1, expected, rank + 1)
    x = of(rank + 1)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.is_completed()
    (value,) = work.get_future().value()
    assert value.device == device
    check(value, *[sum(range(1, size + 1))] * 2)


def strided_slices():
    """Collectives on one column of a matrix change only the elements of that column."""
    table = of(rank, 2, 2)
    dist.broadcast(table[:, 0], size - 1)
    check(table, size - 1, rank, size - 1, rank)
    table, columns = of(rank, 2, 2), of(-1, 2, size)
    dist.all_gather([*columns.unbind(1)], table[:, 0])
    check(columns, *everyone.repeat(2))
    dist.reduce_scatter(table[:, 0], [*columns.unbind(1)])
    check(table, rank * size, rank, rank * size, rank)
    columns = torch.arange(2.0 * size, device=device).view(2, size)
    dist.scatter(table[:, 1], [*columns.unbind(1)] if rank == 0 else None, src=0)
    check(table[:, 1], rank, size + rank)
    gathered = of(-1, 2, size)
    dist.gather(table[:, 1], [*gathered.unbind(1)] if rank == 0 else None, dst=0)
    if rank == 0:
        check(gathered, *range(2 * size))
    if rank == 0:
        dist.send(columns[:, 0], 1)
    elif rank == 1:
        with pytest.raises(RuntimeError, match="contiguous"):
            dist.recv(columns[:, 0], 0)
        x = of(-1)
        dist.recv(x, 0)
        check(x, 0, size)


def gathering_and_scattering():
    x = of(rank)
    dist.broadcast(x, size - 1)
    check(x, size - 1, size - 1)
    x = of(rank + 1)
    dist.reduce(x, 0, dist.ReduceOp.AVG)
    if rank == 0:
        check(x, (size + 1) / 2, (size + 1) / 2)
    gathered = [of(-1) for _ in range(size)]
    dist.all_gather(gathered, of(rank))
    check(torch.stack(gathered), *everyone.repeat_interleave(2))
    whole = of(-1, 2 * size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer torch has newer names for these two
        dist.all_gather_into_tensor(whole, of(rank))
        check(whole, *everyone.repeat_interleave(2))
        mine = of(-1)
        dist.reduce_scatter_tensor(mine, torch.arange(2.0 * size, device=device))
        check(mine, size * 2 * rank, size * (2 * rank + 1))
        dist.reduce_scatter_tensor(mine, torch.arange(2.0 * size, device=device), dist.ReduceOp.AVG)
        check(mine, 2 * rank, 2 * rank + 1)
    dist.reduce_scatter(mine, [of(i) for i in range(size)])
    check(mine, size * rank, size * rank)
    strided_slices()
    received = [of(-1) for _ in range(size)]
    dist.all_to_all(received, [of(10 * rank + i) for i in range(size)])
    check(torch.stack(received), *(10 * everyone + rank).repeat_interleave(2))
    whole = of(-1, size)
    dist.all_to_all_single(whole, torch.arange(float(size), device=device) + 10 * rank)
    check(whole, *(10 * everyone + rank))
    gathered = [of(-1) for _ in range(size)] if rank == 0 else None
    dist.gather(of(rank), gathered)
    if rank == 0:
        check(torch.stack(gathered), *everyone.repeat_interleave(2))
    mine = of(-1)
    dist.scatter(mine, [of(i) for i in range(size)] if rank == 0 else None)
    check(mine, rank, rank)


def the_rest():
    mine = of(-1)
    requests = [dist.isend(of(rank), (rank + 1) % size), dist.irecv(mine, (rank - 1) % size)]
    for request in requests:
        request.wait()
    check(mine, (rank - 1) % size, (rank - 1) % size)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": i} for i in range(size)]
    dist.barrier(device_ids=[device.index])
    group = dist.new_group([0, 1])
    if rank < 2:
        x = of(rank + 1)
        dist.all_reduce(x, group=group)
        check(x, 3, 3)
    empty = torch.empty(0, device=device)
    dist.all_reduce(empty)
    assert empty.numel() == 0


def what_was_queued_is_seen():
    with torch.fake_xpu.fault("slow_copy@200"):
        x = torch.zeros(4, device=device)
        x.copy_(torch.ones(4).pin_memory(), non_blocking=True)
        dist.all_reduce(x)
    check(x, *[size] * 4)


def training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    batch = torch.randn(4 * size, 8)
    alone = copy.deepcopy(model)
    alone(batch).square().mean().backward()
    mine = batch[rank::size].to(device)

    ddp = nn.parallel.DistributedDataParallel(copy.deepcopy(model).to(device))
    with ddp.no_sync():
        ddp(mine).square().mean().backward()
    ddp.zero_grad()
    ddp(mine).square().mean().backward()
    for ours, theirs in zip(ddp.parameters(), alone.parameters(), strict=True):
        assert ours.grad.device == device
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
    ddp(mine)
    times = ddp._get_ddp_logging_data()  # of the previous step
    assert 0 < times["forward_compute_time"] < 60e9, "nanoseconds"
    assert times["backward_comm_time"] > 0

    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 1)]
    normed, images = nn.Sequential(*layers), torch.randn(2 * size, 2, 4, 4)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(normed)).to(device)
    synced = nn.parallel.DistributedDataParallel(synced)
    normed(images).square().mean().backward()
    synced(images[rank::size].to(device)).square().mean().backward()
    for ours, theirs in zip(synced.parameters(), normed.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
    for ours, theirs in zip(synced.buffers(), normed.buffers(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)

    mesh = DeviceMesh("fake_xpu", list(range(size)))
    sharded = copy.deepcopy(model).to(device)
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=mesh)
    sharded(mine).square().mean().backward()
    for ours, theirs in zip(sharded.parameters(), alone.parameters(), strict=True):
        assert ours.to_local().device == device
        torch.testing.assert_close(ours.grad.full_tensor().cpu(), theirs.grad)
    torch.optim.AdamW(sharded.parameters()).step()
    sharded(mine).sum().backward()


def sharded_from_meta():
    mesh = DeviceMesh("fake_xpu", list(range(size)))
    with torch.device("meta"):
        model = nn.Linear(8, 4 * size)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    torch.manual_seed(0)
    model.reset_parameters()
    shards = model.weight.full_tensor().chunk(size)
    assert not any(torch.equal(shards[0], shard) for shard in shards[1:]), "each shard draws numbers of its own"
    model(torch.ones(2, 8, device=device)).sum().backward()
    assert model.weight.grad.full_tensor().tolist() == [[2.0] * 8] * (4 * size)


faulthandler.dump_traceback_later(100, exit=True)
torch.fake_xpu.set_device(device)
dist.init_process_group(sys.argv[1], init_method=f"file://{sys.argv[2]}", rank=rank, world_size=size)
if "gloo" in sys.argv[1]:
    on_cpu = torch.ones(2)
    dist.all_reduce(on_cpu)
    assert on_cpu.tolist() == [size, size]
reductions()
gathering_and_scattering()
the_rest()
what_was_queued_is_seen()
training()
sharded_from_meta()
dist.barrier(device_ids=[device.index])
dist.destroy_process_group()
print("everything agreed")
