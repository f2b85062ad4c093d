"""What each rank does in test_collectives.py.

``runtime_collectives_program.py ACCELERATOR CASE...``: each case is a function below or in unequal_collectives_program.py.
"""

from __future__ import annotations

import collections
import dataclasses
import math

import torch
import torch.distributed as dist
import unequal_collectives_program
from member import ACCELERATOR, COMPLEX, FLOAT8, FLOATS, INTEGERS, everyone, mine, raises, rank, rt, run, same, size

import accelkit

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass(frozen=True)
class Batch:
    ids: torch.Tensor
    names: tuple[torch.Tensor, ...] = ()


def gather():
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, *FLOAT8, torch.bool]:
        whole = torch.arange(2 * 3 * size).remainder(5).reshape(2 * size, 3).to(dtype)
        part = whole[2 * rank : 2 * rank + 2]
        for place in sorted({"cpu", rt.device.type}):
            gathered = rt.gather(part.to(rt.device if place != "cpu" else "cpu"))
            assert gathered.device.type == place
            same(gathered, whole)
    big = torch.arange(2000.0 * size).reshape(size * 40, 50)  # more than a packet holds
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, *FLOAT8, torch.bool]:
        same(rt.gather(big.to(dtype)[40 * rank : 40 * rank + 40].to(rt.device)), big.to(dtype))
        same(rt.gather(big.to(dtype)[40 * rank : 40 * rank + 40]), big.to(dtype))
        same(rt.gather(big.to(dtype).t()[:, 40 * rank : 40 * rank + 40].to(rt.device).t()), big.to(dtype))  # not contiguous
    same(rt.gather(mine(float(rank))), torch.arange(float(size)))  # no dimensions
    same(rt.gather(torch.tensor(float(rank))), torch.arange(float(size)))
    same(rt.gather(mine([1 + 2j, rank], torch.complex64).conj()), [x for other in everyone for x in (1 - 2j, complex(other))])
    same(rt.gather(torch.zeros(0, 3).to(rt.device)), torch.zeros(0, 3))
    same(rt.gather(torch.zeros(2, 0)), torch.zeros(2 * size, 0))
    assert rt.gather({}) == {}

    data = {"pair": Pair(mine([rank]), [mine([[rank, 1.0]])]), "batch": Batch(torch.tensor([rank]), (torch.ones(1, 200),))}
    result = rt.gather(data)
    assert type(result["pair"]) is Pair
    same(result["pair"].left, torch.arange(size).float())
    same(result["pair"].right[0], [[float(other), 1.0] for other in everyone])
    same(result["batch"].ids, torch.arange(size))
    same(result["batch"].names[0], torch.ones(size, 200))
    assert data["pair"].left.shape == (1,)

    group = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        same(rt.gather(mine([rank]), group=group), [0.0, size - 1.0])
        same(rt.reduce(mine([rank + 1]), group=group), [size + 1.0])
        same(rt.broadcast(mine([rank]), size - 1, group=group), [size - 1.0])
    elif group is not None:
        raises(accelkit.UsageError, lambda: rt.gather(mine([rank]), group=group), f"rank {rank}")
    device_only = dist.new_group(backend="fxccl" if ACCELERATOR == "fake_xpu" else "gloo")
    same(rt.gather(torch.full((60,), rank), group=device_only), torch.arange(size).repeat_interleave(60))
    same(rt.reduce(torch.full((60,), rank), group=device_only), [sum(everyone)] * 60)
    assert rt.broadcast({"a": rank}, group=device_only) == {"a": 0}


def differing():
    text = raises(accelkit.CollectiveError, lambda: rt.gather(torch.ones(1 + rank, 2)), "gather", "pad_across_processes")
    assert "rank 0: float32[1, 2]" in text
    assert f"rank {size - 1}: float32[{size}, 2]" in text
    raises(accelkit.CollectiveError, lambda: rt.gather(mine([1.0] * (100 + rank))), "float32[100]", "float32[101]")
    raises(accelkit.CollectiveError, lambda: rt.reduce(torch.ones(50 + rank)), "rank 0: float32[50]")
    raises(accelkit.CollectiveError, lambda: rt.gather(torch.ones(1000 if rank else 1)), "float32[1]", "float32[1000]")  # large and small
    keys = {"a": torch.ones(1), "b": torch.ones(1)} if rank else {"b": torch.ones(1), "a": torch.ones(1)}
    raises(accelkit.CollectiveError, lambda: rt.gather(keys), "{b: float32[1], a: float32[1]}")
    raises(accelkit.CollectiveError, lambda: rt.gather(torch.ones(1).to(torch.float64 if rank else torch.float32)), "float64[1]")
    others = raises(accelkit.CollectiveError, rt.wait_for_everyone if rank else lambda: rt.reduce(torch.ones(1)), "rank 0", "rank")
    assert "reduce (sum) of float32[1]" in others
    assert "wait_for_everyone" in others
    raises(accelkit.CollectiveError, lambda: rt.reduce(torch.ones(9), "max" if rank else "sum"), "reduce (max)", "reduce (sum)")
    raises(accelkit.CollectiveError, lambda: rt.broadcast(torch.ones(9), rank), "broadcast from 0", "broadcast from 1")
    same(rt.gather(torch.tensor([rank])), list(everyone))  # all are together again


def reduce():
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, *FLOAT8]:
        values = torch.tensor([[1 + other % 2, 2, other % 3] for other in everyone])
        for place, repeat in ((rt.device, 1), (torch.device("cpu"), 1), (rt.device, 50), (torch.device("cpu"), 50)):
            given = values[rank].to(dtype).repeat(repeat).to(place)
            before = given.clone()
            for op in ("sum", "product", "max", "min", "mean"):
                if (op == "mean" and dtype in INTEGERS) or (op in ("max", "min") and dtype in COMPLEX):
                    raises(TypeError, lambda: rt.reduce(given, op))  # noqa: B023
                    continue
                reduced = rt.reduce(given, op)
                exact = {"sum": values.sum(0), "product": values.prod(0), "max": values.amax(0), "min": values.amin(0)}
                expected = exact[op] if op in exact else values.double().mean(0)
                assert reduced.device == place
                wanted = expected.to(torch.float32 if dtype not in (torch.float64, torch.complex128) else torch.float64).to(dtype)
                same(reduced, wanted.repeat(repeat))
            assert given.cpu().float().tolist() == before.cpu().float().tolist() if dtype in FLOAT8 else torch.equal(given, before)
    for number in (1, 500):
        top = torch.tensor([2**64 - 1 - rank], dtype=torch.uint64).repeat(number)
        same(rt.reduce(top, "max"), torch.tensor([2**64 - 1], dtype=torch.uint64).repeat(number))
        same(rt.reduce(top, "min"), torch.tensor([2**64 - size], dtype=torch.uint64).repeat(number))
        flags = torch.tensor([rank == 0, True, False]).repeat(number).to(rt.device)
        same(rt.reduce(flags), torch.tensor([True, True, False]).repeat(number))
        same(rt.reduce(flags, "product"), torch.tensor([False, True, False]).repeat(number))
        tiny = torch.full((number,), 1.0 + rank / 128, dtype=torch.bfloat16).to(rt.device)
        same(rt.reduce(tiny), torch.full((number,), float(sum(1.0 + other / 128 for other in everyone))).bfloat16())
        bits = torch.full((number,), 1 << rank, dtype=torch.int16).to(rt.device)
        same(rt.reduce(bits, dist.ReduceOp.BOR), torch.full((number,), (1 << size) - 1, dtype=torch.int16))
    same(rt.reduce(mine([rank]), dist.ReduceOp.AVG), [sum(everyone) / size])
    same(rt.reduce(mine([rank]), "max"), [size - 1.0])
    for with_nan in (0, size - 1):
        for op, infinity in (("max", math.inf), ("min", -math.inf)):
            reduced = rt.reduce(mine([math.nan if rank == with_nan else 1.0, rank, infinity]), op)
            assert [math.isnan(one) for one in reduced.tolist()] == [True, False, False], "a NaN of one process is not lost"
            same(reduced[1:], [size - 1.0 if op == "max" else 0.0, infinity])
    same(rt.reduce(mine([rank]), dist.ReduceOp.MAX), [size - 1.0])
    same(rt.reduce(mine([rank]), scale=0.5), [sum(everyone) / 2])
    same(rt.reduce(mine([[rank, 1.0]] * 3).t()), [[float(sum(everyone))] * 3, [float(size)] * 3])
    same(rt.reduce(mine(float(rank))), torch.tensor(float(sum(everyone))))
    same(rt.reduce(torch.zeros(0).to(rt.device)), torch.zeros(0))
    alone = mine([rank])
    assert rt.reduce(alone, "none") is alone
    raises(ValueError, lambda: rt.reduce(alone, "median"), "'median'", "sum, mean")
    raises(TypeError, lambda: rt.reduce(["text"]), "reduce", "str")
    raises(TypeError, lambda: rt.reduce(alone, 3), "reduction is 3", "torch.distributed.ReduceOp")
    total = rt.reduce(mine([1.0]).requires_grad_())
    assert not total.requires_grad
    both = rt.reduce({"a": mine([rank]), "b": [torch.tensor(rank)]})
    same(both["a"], [float(sum(everyone))])
    same(both["b"][0], sum(everyone))


def gradients():
    for length in (2, 70):  # in the packet, and not
        parts = [torch.arange(length * 3, dtype=torch.float64).reshape(length, 3).add(other).div(7) for other in everyone]
        scalars = [torch.tensor(other + 0.5, dtype=torch.float64) for other in everyone]

        def loss(x, s, weight):
            return (x.sin() * weight).sum() + (s**3).sum() * weight

        leaves = [(part.clone().requires_grad_(), scalar.clone().requires_grad_()) for part, scalar in zip(parts, scalars, strict=True)]
        alone = sum(loss(torch.cat([x for x, _ in leaves]), torch.stack([s for _, s in leaves]), other + 1) for other in everyone)
        alone.backward()
        x, s = parts[rank].to(rt.device).requires_grad_(), scalars[rank].to(rt.device).requires_grad_()
        index = torch.tensor([rank]).to(rt.device)
        gathered = rt.gather({"x": x, "s": s, "i": index}, sync_grads=True)
        same(gathered["x"].detach(), torch.cat(parts))
        same(gathered["i"], list(everyone))
        loss(gathered["x"], gathered["s"], rank + 1).backward()
        for ours, theirs in zip((x, s), leaves[rank], strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-12, atol=0)
    assert not rt.gather(x).requires_grad
    with torch.no_grad():
        assert not rt.gather(x, sync_grads=True).requires_grad
    frozen = x.detach().requires_grad_(rank > 0)
    raises(accelkit.CollectiveError, lambda: rt.gather(frozen, sync_grads=True), "gather", "tensors [0]")


def broadcast():
    for source in {0, size - 1}:
        for dtype in [*FLOATS, *INTEGERS, *COMPLEX, *FLOAT8, torch.bool]:
            for number in (1, 300):
                for place in (rt.device, torch.device("cpu")):
                    given = torch.full((number, 2), rank == source).to(dtype).to(place)
                    before = given.clone()
                    received = rt.broadcast({"a": [given], "b": torch.tensor(rank)}, source)
                    assert received["a"][0].device == place
                    same(received["a"][0], torch.ones(number, 2).to(dtype))
                    same(received["b"], source)
                    assert rank == source or torch.equal(
                        given.cpu().float() if dtype in FLOAT8 else given, before.cpu().float() if dtype in FLOAT8 else before
                    )
        same(rt.broadcast(mine([[rank, 0.0]] * 80).t(), source), [[float(source)] * 80, [0.0] * 80])
        secret = {"text": "x" * 5000, "tensor": mine([source, 1.0]), "none": None, "host": torch.ones(1)}
        told = rt.broadcast(secret if rank == source else None, source)
        assert told is secret if rank == source else told["text"] == secret["text"]
        assert told["tensor"].device == rt.device
        assert told["host"].device.type == "cpu"
        same(told["tensor"], [float(source), 1.0])
        assert rt.broadcast([rank, "a"], source) == [source, "a"]
        same(rt.broadcast(mine([1.0] * (rank + 1)), source), [1.0] * (source + 1))  # of another shape: an object
        same(rt.broadcast(mine([1.0]) if rank == source else [], source), [1.0])
    raises(ValueError, lambda: rt.broadcast(1, size), "from_process", str(size))


def pad():
    for place in (rt.device, torch.device("cpu")):
        values = [1.0 + number for number in range(1 + rank)]
        short = torch.tensor(values).to(place)
        padded = rt.pad_across_processes(short, pad_index=-1)
        same(padded, [*values, *[-1.0] * (size - 1 - rank)])
        assert padded.device == place
        same(rt.pad_across_processes(short, pad_first=True), [*[0.0] * (size - 1 - rank), *values])
    wide = {"a": torch.ones(2, rank + 1, dtype=torch.bfloat16), "b": torch.ones(2), "c": [torch.ones(3, 4, dtype=torch.bool)]}
    padded = rt.pad_across_processes(wide, dim=1)
    same(padded["a"], torch.cat([torch.ones(2, rank + 1), torch.zeros(2, size - rank - 1)], 1).bfloat16())
    assert padded["b"] is wide["b"]
    assert padded["c"][0] is wide["c"][0]
    same(rt.pad_across_processes(wide["a"].t(), dim=-2)[:, 0], padded["a"][0])
    many = rt.pad_across_processes([torch.ones(rank)] * 30)
    assert all(tensor.shape == (size - 1,) for tensor in many)
    flat = torch.ones(2) if rank else torch.ones(2, 3)
    for dim in (1, -1):
        raises(accelkit.CollectiveError, lambda: rt.pad_across_processes([torch.ones(1), flat], dim=dim), "1, 2", "1, 1")  # noqa: B023
    gathered = rt.gather(rt.pad_across_processes(torch.ones(rank + 1)))
    assert gathered.sum() == sum(other + 1 for other in everyone)


def metrics():
    data = torch.arange(4 * size + 1)  # the last batch of the job is filled with samples from the beginning
    seen = [rt.gather_for_metrics(batch.float()) for batch in rt.prepare(torch.utils.data.DataLoader(data, batch_size=2))]
    same(torch.cat(seen), data.float())

    batch = {"x": mine([2.0 * rank, 2.0 * rank + 1]), "n": torch.tensor([2 * rank, 2 * rank + 1])}
    assert len(rt.gather_for_metrics(batch)["x"]) == 2 * size
    assert rt.gather_for_metrics([f"a{rank}", f"b{rank}"]) == [f"{x}{other}" for other in everyone for x in "ab"]
    assert rt.gather_for_metrics([f"a{rank}"] * rank) == [f"a{other}" for other in everyone for _ in range(other)]
    assert rt.gather_for_metrics({"rank": rank}) == [{"rank": other} for other in everyone]
    assert rt.gather_for_metrics(["x" * 200 * rank]) == ["x" * 200 * other for other in everyone]
    uneven = rt.gather_for_metrics([mine([1.0] * (rank + 1)), torch.ones(1)], use_gather_object=True)
    assert [len(tensor) for tensor in uneven[::2]] == [other + 1 for other in everyone]
    assert all(tensor.device == rt.device for tensor in uneven[::2])
    assert all(tensor.device.type == "cpu" for tensor in uneven[1::2])
    loader = rt.prepare(torch.utils.data.DataLoader(torch.arange(2 * size + 3), batch_size=2))
    for _ in loader:
        assert loader.remainder == (3 if loader.is_at_end else -1)
        if loader.is_at_end:
            same(rt.gather_for_metrics(batch)["n"], [0, 1, 2])
            assert rt.gather_for_metrics([f"a{rank}", f"b{rank}"]) == ["a0", "b0", "a1"]
            assert len(rt.gather(batch)["n"]) == 2 * size
            for _ in rt.prepare(torch.utils.data.DataLoader(torch.arange(4 * size), batch_size=2)):
                assert len(rt.gather_for_metrics(batch)["n"]) == 2 * size, "an evaluation is not the training's end"
        else:
            assert len(rt.gather_for_metrics(batch)["n"]) == 2 * size
    assert len(rt.gather_for_metrics(batch)["n"]) == 2 * size


def memory():
    """A device that is full is not an error of the other processes."""
    if ACCELERATOR != "fake_xpu":
        return
    part = mine([float(rank)] * 2000)
    with torch.fake_xpu.fault("oom@1"):
        raises(torch.OutOfMemoryError, lambda: rt.gather(part))
    same(rt.gather(part), [float(other) for other in everyone for _ in range(2000)])


if __name__ == "__main__":
    run(globals() | vars(unequal_collectives_program))
