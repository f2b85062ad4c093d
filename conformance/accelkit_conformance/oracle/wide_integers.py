"""Calls with integer arguments or results that do not fit into an int32, and calls that add up narrow integers in int64."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.known_differences import may_be_missing
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_NUMBERS = torch.tensor([3_000_000_019, -2_999_999_929, 1_234_567_891, 7])
_CLOSE = torch.tensor([7, 2**60, 2**60 + 1, -(2**60) + 1, -(2**60)])  # in float64, some are equal; the low 32 bits order them differently
_CLOSE_NARROW = torch.tensor([7, 2**30, 2**30 + 1, -(2**30) + 1, -(2**30)], dtype=torch.int32)  # in float32, some are equal
_NARROW = torch.tensor([2_000_000_011, 2_000_000_089, 2], dtype=torch.int32)

_MANY = torch.arange(1, 1001) % 100 + 28  # the sum, and nearly all partial sums, do not fit into 16 bits

_Calls = dict[str, tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]]
ARITHMETIC: _Calls = {
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
"""Calls that compute new integers, by name. Each is a pair: the integers with which a function is called, and this function."""
ACCUMULATING: _Calls = {
    f"{name}_of_{str(dtype).removeprefix('torch.')}": (_MANY.to(dtype), call)
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16)
    for name, call in {
        "sum": lambda x: x.sum(),
        "sum_along_a_dimension": lambda x: x.view(2, 500).sum(1),
        "nansum": lambda x: x.nansum(),
        "cumsum": lambda x: x.cumsum(0),
        "prod": lambda x: x[:8].prod(),
        "cumprod": lambda x: x[:8].cumprod(0),
        "trace": lambda x: x[:900].view(30, 30).trace(),
        "count_nonzero": lambda x: x.count_nonzero(),
        "bincount": lambda x: x.bincount(),
    }.items()
    if (name, dtype) not in {("bincount", torch.bool), ("trace", torch.bool)}
}
"""Calls on narrow integers with results in int64, by name, in the same form as in ``ARITHMETIC``."""
COMPARING: _Calls = {
    "max": (_CLOSE, lambda x: x.max()),
    "min": (_CLOSE, lambda x: x.min()),
    "amax": (_CLOSE, lambda x: x.amax(0)),
    "amin": (_CLOSE, lambda x: x.amin(0)),
    "argmax": (_CLOSE, lambda x: x.argmax()),
    "argmin": (_CLOSE, lambda x: x.argmin()),
    "aminmax": (_CLOSE, lambda x: torch.stack([*x.aminmax()])),
    "max_along_a_dimension": (_CLOSE, lambda x: torch.stack([*x.max(0), *x.min(0)])),
    "cummax": (_CLOSE, lambda x: torch.stack([*x.cummax(0), *x.cummin(0)])),
    "maximum": (_CLOSE, lambda x: torch.stack([x.maximum(x.roll(1)), x.minimum(x.roll(1))])),
    "clamp": (_CLOSE, lambda x: x.clamp(int(x[3]), int(x[1]))),
    "eq": (_CLOSE, lambda x: (x == x[:, None]).to(torch.int64)),
    "lt": (_CLOSE, lambda x: (x < x[:, None]).to(torch.int64)),
    "sort": (_CLOSE, lambda x: torch.stack([*x.sort()])),
    "topk": (_CLOSE, lambda x: torch.stack([*x.topk(3)])),
    "kthvalue": (_CLOSE, lambda x: torch.stack([*x.kthvalue(2)])),
    "median": (_CLOSE, lambda x: x[1:].median()),
    "mode": (_CLOSE, lambda x: x.repeat(2)[:-1].mode().values),
    "unique": (_CLOSE, lambda x: torch.cat([*x.repeat(2).unique(return_inverse=True, return_counts=True)])),
    "unique_rows": (_CLOSE, lambda x: _flat(x.repeat(2)[:, None].unique(dim=0, return_inverse=True, return_counts=True))),
    "unique_consecutive": (_CLOSE, lambda x: _flat(x.repeat_interleave(2).unique_consecutive(return_inverse=True, return_counts=True))),
    "isin": (_CLOSE, lambda x: torch.isin(x, x[1:4:2]).to(torch.int64)),
    "searchsorted": (_CLOSE, lambda x: torch.searchsorted(x.sort().values, x)),
    "bucketize": (_CLOSE, lambda x: torch.bucketize(x, x.sort().values)),
    "scatter_reduce": (_CLOSE, lambda x: x[:1].scatter_reduce(0, torch.zeros_like(x, dtype=torch.int64), x, "amax")),
}
"""Calls that compare integers, by name, in the same form as in ``ARITHMETIC``."""


def _flat(results: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([one.flatten() for one in results])


def computed(subject: Subject, name: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the results of the call with this name on the device, each with the result of the same call on the CPU.

    The calls in ``COMPARING`` are made with int64 tensors and, if the device supports this dtype, with int32 tensors.

    Raises:
        NotSupported: If the accelerator declares that the device lacks a dtype of the call, or if the device raises an error for a
            call (such as a matmul of integers) that PyTorch itself implements only for the CPU.
    """
    numbers, call = {**ARITHMETIC, **ACCUMULATING, **COMPARING}[name]
    close = [_CLOSE_NARROW] if name in COMPARING and not subject.lacks("int32") else []
    results = []
    for here in (numbers, *close):
        require_dtypes(subject, lambda here=here: call(here))
        with may_be_missing(opdb.operators().get(name.partition("_of_")[0]), (here, (), {})):
            results.append((call(here.to(subject.device)), call(here)))
    return results
