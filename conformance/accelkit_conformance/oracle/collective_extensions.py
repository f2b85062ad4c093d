"""Collectives that not every backend supports: coalesced calls, and sums with a factor."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from accelkit_conformance.oracle.rank_values import check_equal, tensor_of

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_coalesced(subject: Subject) -> None:
    """Check three calls of different lengths that are coalesced into one. A backend may reject them."""
    n, rank = subject.world_size, subject.rank
    own = [dist.new_group([one]) for one in range(n)][rank]
    for group, members in ((dist.group.WORLD, range(n)), (own, [rank])):
        total, count = sum(one + 1 for one in members), len(members)

        def reduced(length: int) -> tuple[torch.Tensor, list[float]]:
            x = tensor_of(subject, *[rank + 1] * length)
            dist.all_reduce(x, group=group)  # noqa: B023
            return x, [total] * length  # noqa: B023

        def gathered(length: int) -> tuple[torch.Tensor, list[float]]:
            whole = tensor_of(subject, *[-1] * count * length)  # noqa: B023
            dist.all_gather_into_tensor(whole, tensor_of(subject, *[rank + length] * length), group=group)  # noqa: B023
            return whole, [one + length for one in members for _ in range(length)]  # noqa: B023

        def scattered(length: int) -> tuple[torch.Tensor, list[float]]:
            part = tensor_of(subject, *[-1] * length)
            dist.reduce_scatter_tensor(part, tensor_of(subject, *range(count * length)) * (rank + 1), group=group)  # noqa: B023
            first = members.index(rank) * length  # noqa: B023
            return part, [total * (first + place) for place in range(length)]  # noqa: B023

        for call in (reduced, gathered, scattered):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FutureWarning)
                    with dist._coalescing_manager(group=group, async_ops=True) as manager:
                        results = [call(length) for length in (3, 1, 1000)]
                    manager.wait()
            except (RuntimeError, ValueError):
                continue
            for found, expected in results:
                check_equal(subject, found, *expected)


def check_scaled_sums(subject: Subject) -> None:
    """Check ``PREMUL_SUM`` with three factors. A backend may reject it."""
    n, rank = subject.world_size, subject.rank
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        for factor in (0.5, 4.0, 0.3):
            if subject.lacks(dtype):
                continue
            x = tensor_of(subject, *[rank + 1.0] * 1000, -1.0, dtype=dtype)
            try:
                dist.all_reduce(x, op=dist._make_nccl_premul_sum(factor))
            except (RuntimeError, ValueError, TypeError):
                continue
            expected = torch.tensor([n * (n + 1) / 2 * factor] * 1000 + [-n * factor])
            torch.testing.assert_close(x.cpu().float(), expected, rtol=0.02, atol=0.0, msg=lambda text, dtype=dtype: f"{dtype}: {text}")
