"""Operators on the largest and smallest integers of a dtype, and sums that are too large for the dtype of the summands."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.compared_calls import compare_call, compare_calls

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(torch, name)
    for name in (
        "add", "sub", "mul", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor",
        "logical_and", "logical_or", "logical_xor",
    )
}  # fmt: skip
_DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "floor_divide": torch.floor_divide,
    "trunc_divide": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "bitwise_not": torch.bitwise_not,
    "sign": torch.sign,
    "square": torch.square,
    "relu": torch.relu,
    "clamp": lambda x: torch.clamp(x, 1, 100),
    "cube": lambda x: x**3,
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "diff": lambda x: x.diff(),
    "cat": lambda x: torch.cat([x, x]),
    "where": lambda x: torch.where(x > 3, x, -x),
    "masked_fill": lambda x: x.masked_fill(x > 3, torch.iinfo(x.dtype).max - 1),
    "fill": lambda x: torch.full_like(x, torch.iinfo(x.dtype).max - 1),
    "index_select": lambda x: x.index_select(0, torch.arange(len(x) - 1, -1, -1, device=x.device)),
    "gather": lambda x: x.gather(0, torch.arange(len(x) - 1, -1, -1, device=x.device)),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, torch.zeros_like(x, dtype=torch.int64), x // 2),
    "index_add": lambda x: torch.zeros_like(x).index_add(0, torch.arange(len(x), device=x.device), x),
    "right shift": lambda x: torch.stack([x >> 1, x >> 4, x >> torch.full_like(x, 6)]),
    "left shift": lambda x: torch.stack([x << 1, x << 4, x << torch.full_like(x, 6)]),
    "tril": lambda x: x.view(2, -1).tril(),
    "addition of a large number": lambda x: x + (torch.iinfo(x.dtype).max // 2 + 1),
    "division and multiplication by numbers": lambda x: x // 4 * 3,
    "compared with a number": lambda x: torch.stack([x == torch.iinfo(x.dtype).max, x < torch.iinfo(x.dtype).max]),
    "item": lambda x: [one.item() for one in x],
    "repeat_interleave": lambda x: x.repeat_interleave(2),
    "transposed": lambda x: x.view(2, -1).t().contiguous(),
}


def _numbers(dtype: torch.dtype) -> list[int]:
    limits = torch.iinfo(dtype)
    largest = [
        limits.max,
        limits.max - 1,
        limits.max // 3 + 1,
        16_798_993 % (limits.max + 1),
        -7,
        -8,
        42_309_891 % (limits.max + 1),
        limits.min,
    ]
    return [number for number in [0, 1, 2, 3, 31, 100, -1, -3, *largest] if number >= limits.min]


def check_special_integers(subject: Subject, dtype: str) -> None:
    """Compare the results of pointwise, copying and indexing operators with those on the CPU.

    The inputs are special integers, such as the largest and the smallest integer of the dtype.

    No integer is divided by zero, because the result is undefined. The smallest integer is divided only by 2 and 4, because dividing it by
    -1 overflows. The smallest integer is also never used as a divisor. Differences are recorded in the subject.
    """
    chosen = getattr(torch, dtype)
    numbers = _numbers(chosen)
    numbers += [1] * (len(numbers) % 2)
    x = torch.tensor(numbers, dtype=chosen)
    compare_calls(subject, dtype, {name: (call, (x,)) for name, call in _UNARY.items()})
    pairs = list(itertools.product(numbers, repeat=2))
    safe = [(a, b) for a, b in pairs if b not in (0, torch.iinfo(chosen).min) and a != torch.iinfo(chosen).min]
    for calls, chosen_pairs in ((_BINARY, pairs), (_DIVISIONS, safe)):
        first, second = (torch.tensor(column, dtype=chosen) for column in zip(*chosen_pairs, strict=True))
        for name, call in calls.items():
            with subject.sample(f"{dtype}, {name}", {"name": name, "dtype": dtype}):
                compare_call(subject, call, (first, second))
                compare_call(subject, call, (first, 31))


_SUMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: x.sum(),
    "sum along a dimension": lambda x: x.sum(1),
    "prod": lambda x: (x % 2 + 1)[:, :40].prod(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumsum of columns": lambda x: x.cumsum(0),
    "cumprod": lambda x: (x % 2 + 1)[:, :40].cumprod(1),
    "count_nonzero": lambda x: x.count_nonzero(1),
    "nansum": lambda x: x.nansum(1),
    "trace": lambda x: x[:, :3].trace(),
    "mean": lambda x: x.mean(1, dtype=torch.float32),
    "sum of float32": lambda x: x.sum(1, dtype=torch.float32),
    "dot": lambda x: torch.tensordot(x.long(), x.long()) if x.device.type == "cpu" else (x.long() * x.long()).sum(),
    "bincount": lambda x: torch.bincount(x[0].abs().long()),
    "argmax": lambda x: x[:, :1].argmax(0),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(1),
}


def check_sums_of_small_integers(subject: Subject, dtype: str) -> None:
    """Compare the results of ``sum``, ``cumsum`` and similar functions with those on the CPU.

    The argument of each function is a matrix of small integers or booleans. For bool, uint8 and int8, most sums do not fit into the dtype
    of the matrix. Differences are recorded in the subject.
    """
    numbers = (torch.arange(3 * 333).view(3, 333) * 7) % 121
    x = (numbers % 3 > 0) if dtype == "bool" else numbers.to(getattr(torch, dtype))
    calls = {name: (call, (x,)) for name, call in _SUMS.items() if dtype != "bool" or "prod" not in name}
    compare_calls(subject, dtype, calls)
