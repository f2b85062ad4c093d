"""Calls on integers whose results are larger than 2**40."""

from __future__ import annotations

from collections.abc import Callable

import torch

_NUMBERS = torch.tensor([3_000_000_019, -2_999_999_929, 1_234_567_891, 7])
_NARROW = torch.tensor([2_000_000_011, 2_000_000_089, 2], dtype=torch.int32)

CALLS: dict[str, tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]] = {
    "mul": (_NUMBERS, lambda x: x * x.flip(0)),
    "add": (_NUMBERS * 2048, lambda x: x + x),
    "sum": (_NUMBERS * 2048, lambda x: x.sum()),
    "prod": (_NUMBERS, lambda x: x[:2].prod()),
    "cumsum": (_NUMBERS * 2048, lambda x: x.cumsum(0)),
    "pow": (_NUMBERS // 1000, lambda x: x**2),
    "shift": (_NUMBERS, lambda x: x << 13),
    "matmul": (_NUMBERS // 1000, lambda x: x.view(1, -1) @ x.view(-1, 1)),
    "floor_divide": (_NUMBERS * 2048, lambda x: x // 7),
    "sum_of_int32": (_NARROW, lambda x: x.sum()),
    "prod_of_int32": (_NARROW, lambda x: x.prod()),
    "cumsum_of_int32": (_NARROW, lambda x: x.cumsum(0)),
    "cumprod_of_int32": (_NARROW, lambda x: x.cumprod(0)),
}
"""For each name, the integers and the call."""
