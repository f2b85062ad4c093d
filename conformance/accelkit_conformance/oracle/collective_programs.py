"""Collectives in less common cases: special values, an input that is part of the output, several dimensions, waiting for calls in reverse
order, changing lengths and dtypes, objects, groups, calls after an error, and gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from accelkit_conformance.oracle.collective_extensions import check_coalesced, check_scaled_sums
from accelkit_conformance.oracle.rank_values import check_equal, tensor_of

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def _patterns(subject: Subject, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Return a CPU tensor with the special values of a rank, in an order that depends on the rank.

    The values are NaN, infinities, zeros, the largest and the smallest numbers, 1 + eps, and -1 - eps. They include a subnormal number
    unless the device declares that it does not support subnormal numbers.
    """
    size = torch.finfo(dtype)
    smallest = size.smallest_normal if subject.capabilities["subnormals"] == "none" else size.smallest_normal / 2
    numbers = [math.nan, math.inf, -math.inf, -0.0, 0.0, size.max, size.min, size.tiny, smallest, 1 + size.eps, -1 - size.eps]
    return torch.tensor(numbers, dtype=dtype).roll(rank)


def _is_same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits. Any NaN is equal to any other NaN."""
    here = found.cpu()
    wide = _INTEGERS[here.dtype]
    return bool(((here.view(wide) == expected.view(wide)) | (here.isnan() & expected.isnan())).all())


def _bits(subject: Subject) -> None:
    n, rank, device = subject.world_size, subject.rank, subject.device
    for dtype in _INTEGERS:
        if subject.lacks(str(dtype).removeprefix("torch.")):
            continue
        every = [_patterns(subject, dtype, one) for one in range(n)]
        mine = every[rank].to(device)
        results = {"broadcast": (mine.clone(), every[n - 1])}
        dist.broadcast(results["broadcast"][0], n - 1)
        parts = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(parts, mine)
        results["all_gather"] = (torch.cat(parts), torch.cat(every))
        whole = mine.new_empty(n * len(mine))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            dist.all_gather_into_tensor(whole, mine)
        results["all_gather_into_tensor"] = (whole, torch.cat(every))
        swapped = mine.new_empty(n * 11)
        dist.all_to_all_single(swapped, mine.repeat(n))
        results["all_to_all_single"] = (swapped, torch.cat(every))
        own = torch.empty_like(mine)
        dist.scatter(own, [one.to(device) for one in every] if rank == 0 else None, src=0)
        results["scatter"] = (own, every[rank])
        received = torch.empty_like(mine)
        calls = [dist.P2POp(dist.isend, mine, (rank + 1) % n), dist.P2POp(dist.irecv, received, (rank - 1) % n)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        results["batch_isend_irecv"] = (received, every[(rank - 1) % n])
        for name, (found, expected) in results.items():
            assert _is_same(found, expected), f"{name} of {dtype} gave {found.tolist()}, not {expected.tolist()}"


def _special_sums(subject: Subject) -> None:
    n, rank, inf, nan = subject.world_size, subject.rank, math.inf, math.nan
    mine = (
        [inf, inf if rank else -inf, nan if rank else 1.0, 3e38 if rank else -3e38, 0.0, 1.0]
        if rank < 2
        else [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    )
    x = tensor_of(subject, *mine)
    dist.all_reduce(x)
    found = x.tolist()
    assert found[0] == inf, f"infinity plus infinity is {found[0]}"
    assert math.isnan(found[1]), f"infinity minus infinity is {found[1]}"
    assert math.isnan(found[2]), f"1 plus NaN is {found[2]}"
    assert found[3:] == [0.0, 0.0, float(n)], f"the other sums are {found[3:]}"
    for op, expected in ((dist.ReduceOp.MAX, [inf, 1.0]), (dist.ReduceOp.MIN, [0.0, -inf])):
        x = tensor_of(subject, inf if rank else 0.0, -inf if rank else 1.0)
        dist.all_reduce(x, op)
        check_equal(subject, x, *expected)


def _in_place(subject: Subject) -> None:
    n, rank = subject.world_size, subject.rank
    whole = torch.full((2 * n,), -1.0, device=subject.device)
    whole[2 * rank : 2 * rank + 2] = tensor_of(subject, rank, rank + 10)
    expected = [value for one in range(n) for value in (one, one + 10)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_into_tensor(whole, whole[2 * rank : 2 * rank + 2])
    check_equal(subject, whole, *expected)
    parts = [tensor_of(subject, one, one + 10) if one == rank else torch.zeros(2, device=subject.device) for one in range(n)]
    dist.all_gather(parts, parts[rank])
    check_equal(subject, torch.cat(parts), *expected)


def _dimensions(subject: Subject) -> None:
    n, rank, device = subject.world_size, subject.rank, subject.device
    every = torch.arange(n * 6.0).view(n, 2, 3)
    mine = every[rank].to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        whole = torch.empty(2 * n, 3, device=device)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole.cpu(), every.flatten(0, 1)), f"gathering matrices gave {whole.tolist()}"
        part = torch.empty(2, 3, device=device)
        dist.reduce_scatter_tensor(part, every.flatten(0, 1).to(device) * (rank + 1))
        check_equal(subject, part, *(every[rank] * n * (n + 1) / 2).flatten().tolist())
    rows = torch.arange(n * (n + 1) / 2 * 2, device=device).view(-1, 2) + 100 * rank  # rank i gets i + 1 rows
    received = torch.empty(n * (rank + 1), 2, device=device)
    dist.all_to_all_single(received, rows, [rank + 1] * n, [one + 1 for one in range(n)])
    first = rank * (rank + 1)
    expected = [100 * source + first + place for source in range(n) for place in range(2 * (rank + 1))]
    check_equal(subject, received, *expected)
    cube = torch.full((2, 3, 4), float(rank), device=device)
    dist.broadcast(cube, n - 1)
    check_equal(subject, cube, *[n - 1] * 24)


def _orders(subject: Subject) -> None:
    """Start many asynchronous collectives, queue an unrelated matrix product on the device, wait for the collectives in the reverse order,
    and check all results. Also check the value of the future of an ``all_reduce``."""
    n, rank = subject.world_size, subject.rank
    tensors = [tensor_of(subject, *[rank + number] * (number + 1)) for number in range(24)]
    works = []
    for number, one in enumerate(tensors):
        works.append(dist.all_reduce(one, async_op=True) if number % 2 else dist.broadcast(one, number % n, async_op=True))
    unrelated = torch.ones(64, 64, device=subject.device) @ torch.ones(64, 64, device=subject.device)
    for work in reversed(works):
        work.wait()
    for number, one in enumerate(tensors):
        expected = n * number + n * (n - 1) / 2 if number % 2 else number % n + number
        check_equal(subject, one, *[expected] * (number + 1))
    assert float(unrelated[3, 5]) == 64
    result = dist.all_reduce(tensor_of(subject, rank + 1), async_op=True).get_future().wait()
    check_equal(subject, result[0] if isinstance(result, list) else result, n * (n + 1) / 2)


def _alternating(subject: Subject) -> None:
    """Check results while the collective, reduction, length and dtype change from call to call.

    A backend that caches the plan of a collective might reuse a plan that was made for another call.
    """
    n, rank = subject.world_size, subject.rank
    for repeat in range(3):
        for length in (3, 5, 4096, 3):
            for dtype in ("float32", "int32", "float32"):
                if subject.lacks(dtype):
                    continue
                x = tensor_of(subject, *[rank + repeat] * length, dtype=dtype)
                dist.all_reduce(x)
                check_equal(subject, x[-3:], *[n * repeat + n * (n - 1) / 2] * 3)
                dist.all_reduce(x, dist.ReduceOp.MAX)
                x.add_(rank)
                dist.broadcast(x, repeat % n)
                check_equal(subject, x[:2], *[n * repeat + n * (n - 1) / 2 + repeat % n] * 2)


def _objects(subject: Subject) -> None:
    n, rank = subject.world_size, subject.rank
    found: list[Any] | None = [None] * n if rank == n - 1 else None
    dist.gather_object({"rank": rank, "tensor": torch.tensor([rank])}, found, dst=n - 1)
    if found is not None:
        assert [one["rank"] for one in found] == list(range(n)), f"gather_object gave {found}"
        assert [one["tensor"].tolist() for one in found] == [[one] for one in range(n)]
    own: list[Any] = [None]
    dist.scatter_object_list(own, [("part", one, "y" * 100 * one) for one in range(n)] if rank == 0 else None, src=0)
    assert own == [("part", rank, "y" * 100 * rank)], f"scatter_object_list gave {own}"
    several: list[Any] = [rank, "x" * (50 * rank + 1), {"a": [rank]}]
    dist.broadcast_object_list(several, src=1, device=subject.device)
    assert several == [1, "x" * 51, {"a": [1]}], f"broadcast_object_list gave {several}"
    if rank == 0:
        dist.send_object_list(["sent", 5], dst=1, device=subject.device)
    elif rank == 1:
        received: list[Any] = [None, None]
        dist.recv_object_list(received, src=0, device=subject.device)
        assert received == ["sent", 5], f"recv_object_list gave {received}"


def _groups(subject: Subject) -> None:
    n, rank = subject.world_size, subject.rank
    order = list(range(n))[::-1]
    group = dist.new_group(order)
    members = dist.get_process_group_ranks(group)
    last = members[-1]
    assert sorted(members) == list(range(n))
    assert dist.get_world_size(group) == n
    assert members[dist.get_rank(group)] == rank
    x = tensor_of(subject, rank)
    dist.broadcast(x, group=group, group_src=n - 1)
    check_equal(subject, x, last)
    x = tensor_of(subject, rank + 1)
    dist.reduce(x, group=group, group_dst=0)
    if rank == members[0]:
        check_equal(subject, x, n * (n + 1) / 2)
    several = [tensor_of(subject, rank + number) for number in range(6)]
    works = [dist.all_reduce(one, group=group if number % 2 else None, async_op=True) for number, one in enumerate(several)]
    for work in works:
        work.wait()
    for number, one in enumerate(several):
        check_equal(subject, one, n * number + n * (n - 1) / 2)
    alone = dist.new_group([n - 1])
    x = tensor_of(subject, rank)
    if rank == n - 1:
        dist.all_reduce(x, group=alone)
        dist.barrier(group=alone)
    else:
        assert alone is dist.GroupMember.NON_GROUP_MEMBER, "a rank that is not in the list of a new group is a member of the group"
    check_equal(subject, x, rank)
    dist.barrier(group=group)


def _after_errors(subject: Subject) -> None:
    """Check that calls with wrong arguments raise an error on every rank, and that ``all_reduce`` works after each of them."""
    n, rank = subject.world_size, subject.rank
    mine = tensor_of(subject, rank, rank + 1)
    wrong: tuple[Callable[[], Any], ...] = (
        lambda: dist.all_gather([torch.empty_like(mine)] * (n + 1), mine),
        lambda: dist.scatter(mine, [mine] * (n + 1) if rank == 0 else [mine], src=0),
        lambda: dist.all_reduce("text"),  # type: ignore[arg-type]
        lambda: dist.broadcast(mine, n + 5),
    )
    for number, call in enumerate(wrong):
        try:
            call()
        except (RuntimeError, ValueError, TypeError):
            pass
        else:
            raise AssertionError(f"wrong call {number} raised no error on rank {rank}")
        x = tensor_of(subject, rank + number)
        dist.all_reduce(x)
        check_equal(subject, x, n * number + n * (n - 1) / 2)


def _gradients(subject: Subject) -> None:
    """Check the gradients of the collectives in ``torch.distributed.nn``.

    Also check collectives that change a parameter under ``no_grad``.
    """
    from torch.distributed.nn import functional

    n, rank = subject.world_size, subject.rank
    x = tensor_of(subject, rank + 1.0, 2.0).requires_grad_()
    (functional.all_reduce(x) * (rank + 1)).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    check_equal(subject, x.grad, *[n * (n + 1) / 2] * 2)
    x.grad = None
    gathered = functional.all_gather(x)  # type: ignore[no-untyped-call]
    check_equal(subject, torch.cat(gathered), *[value for one in range(n) for value in (one + 1, 2)])
    (torch.stack(gathered) * (rank + 1)).sum().backward()
    assert x.grad is not None
    check_equal(subject, x.grad, *[n * (n + 1) / 2] * 2)
    parameter = torch.nn.Parameter(tensor_of(subject, rank, 1.0))
    with torch.no_grad():
        dist.all_reduce(parameter)
        dist.broadcast(parameter.data, 0)
    check_equal(subject, parameter.detach(), n * (n - 1) / 2, n)
    assert parameter.requires_grad
    assert parameter.is_leaf


def check_strided_and_empty(subject: Subject) -> None:
    """Check ``all_reduce`` of transposed, empty and 0-d tensors, and ``all_reduce`` and ``broadcast`` of slices.

    Slices are not checked if the backend is gloo. A backend may reject a slice with a RuntimeError or a ValueError.
    """
    n = subject.world_size
    x = (torch.arange(6.0, device=subject.device).view(2, 3) * (subject.rank + 1)).t().contiguous().t()
    dist.all_reduce(x)
    check_equal(subject, x, *[value * n * (n + 1) / 2 for value in range(6)])
    for collective, expected in ((dist.all_reduce, n * (n + 1) / 2), (lambda tensor: dist.broadcast(tensor, n - 1), n)):
        if isinstance(dist.group.WORLD._get_backend(subject.device), dist.ProcessGroupGloo):
            break  # gloo itself writes outside the slice, which a vendor cannot fix
        table = torch.full((2, 2), float(subject.rank + 1), device=subject.device)
        try:
            collective(table[:, 0])
        except (RuntimeError, ValueError):  # as NCCL does, on every rank
            continue
        check_equal(subject, table, expected, subject.rank + 1, expected, subject.rank + 1)
    dist.all_reduce(torch.empty(0, device=subject.device))
    scalar = torch.tensor(1.0, device=subject.device)
    dist.all_reduce(scalar)
    check_equal(subject, scalar, n)


CASES: Mapping[str, Callable[[Subject], None]] = {
    "bits": _bits,
    "special_sums": _special_sums,
    "in_place": _in_place,
    "dimensions": _dimensions,
    "orders": _orders,
    "alternating": _alternating,
    "coalesced": check_coalesced,
    "scaled_sums": check_scaled_sums,
    "objects": _objects,
    "groups": _groups,
    "after_errors": _after_errors,
    "gradients": _gradients,
}
"""The cases, by name."""
