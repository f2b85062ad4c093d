"""Calls with unsigned integers of two, four and eight bytes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

DTYPES = ("uint16", "uint32", "uint64")
_OTHERS = ("bool", "uint8", "int16", "int32", "int64", "float32", "bfloat16", *DTYPES)
_BINARY = (
    "add", "sub", "mul", "eq", "ne", "lt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "minimum", "floor_divide",
    "remainder", "true_divide",
)  # fmt: skip

_CALLS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "copies": lambda x, y: (
        x.clone(),
        x[1::2].contiguous(),
        x[None].expand(2, -1).clone(),
        torch.empty_like(x).copy_(y),
        torch.zeros_like(x),
    ),
    "fill": lambda x, y: (torch.full_like(x, 7), x.clone().fill_(9)),
    "cat": lambda x, y: (torch.cat([x, y]), torch.stack([x, y])),
    "where": lambda x, y: torch.where(x != y, x, y),
    "index": lambda x, y: (x[[2, 0, 1]], x.index_select(0, torch.tensor([1, 3]).to(x.device)), x.flip(0)),
    "sum": lambda x, y: (x[:4].sum(), x[:4].sum(dtype=torch.float32)),
    "not": lambda x, y: ~x,
    "to bool": lambda x, y: (x.bool(), x.logical_not()),
    "zeta": lambda x, y: torch.special.zeta(torch.tensor(2.0).to(x.device), x[1:4]),
    "float": lambda x, y: (x + 0.5, x * torch.tensor([0.5]).to(x.device), x / 2),
    **{name: lambda x, y, name=name: getattr(torch, name)(x, y) for name in _BINARY},
    **{f"{name} of a number": lambda x, y, name=name: getattr(torch, name)(x, 3) for name in _BINARY},
}


def check_unsigned_integers(subject: Subject, dtype: str) -> None:
    """Compare the results of calls with unsigned integers on the device with those on the CPU. Differences are recorded in the subject.

    Calls that the CPU rejects are left out. The device may reject any call: few devices support these dtypes.
    """
    chosen = getattr(torch, dtype)
    numbers = [0, 1, 2, 3, 200, 1000, torch.iinfo(chosen).max // 2 + 2, torch.iinfo(chosen).max - 1, torch.iinfo(chosen).max]
    x, y = torch.tensor(numbers, dtype=chosen), torch.tensor([*numbers[1:], 5], dtype=chosen)
    calls = {name: (call, (x, y)) for name, call in _CALLS.items()}
    for other in _OTHERS:
        convert = operator.methodcaller("to", getattr(torch, other))
        calls[f"{dtype} to {other}"] = convert, (x,)
        small = torch.tensor([0, 1, 0, 1, 1] if other == "bool" else [0, 1, 2, 3, 100]).to(getattr(torch, other))
        calls[f"{other} to {dtype}"] = operator.methodcaller("to", chosen), (small,)
    for name, (call, given) in calls.items():
        with subject.sample(f"{name}, {dtype}", {"name": name, "dtype": dtype}):
            try:
                compare_call(subject, call, given, is_exact=not any(one in name for one in ("div", "float", "zeta")))
            except (RuntimeError, NotImplementedError, TypeError) as error:
                raise NotSupported(f"the device raises {type(error).__name__}: {error}") from error
