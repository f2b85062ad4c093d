"""Check the three ways to exchange parts between all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from accelkit_conformance.oracle.rank_values import check_equal, tensor_of

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_all_to_all(subject: Subject) -> None:
    """Check ``all_to_all_single`` with equal and with uneven parts, and ``all_to_all``."""
    n, rank = subject.world_size, subject.rank
    out = torch.empty(n, device=subject.device)
    dist.all_to_all_single(out, torch.tensor([10.0 * rank + part for part in range(n)], device=subject.device))
    check_equal(subject, out, *[10 * source + rank for source in range(n)])
    given = torch.full((sum(range(1, n + 1)),), float(rank), device=subject.device)  # part i has i + 1 elements
    out = torch.empty(n * (rank + 1), device=subject.device)
    dist.all_to_all_single(out, given, [rank + 1] * n, [part + 1 for part in range(n)])
    check_equal(subject, out, *[source for source in range(n) for _ in range(rank + 1)])
    parts = [torch.empty(1, device=subject.device) for _ in range(n)]
    dist.all_to_all(parts, [tensor_of(subject, 10 * rank + part) for part in range(n)])
    check_equal(subject, torch.cat(parts), *[10 * source + rank for source in range(n)])
