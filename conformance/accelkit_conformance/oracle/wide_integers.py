"""Calls on integers whose results are larger than 2**40."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.known_differences import may_be_missing

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

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
"""The calls by name. Each is a function, preceded by the integers with which it is called."""


def computed(subject: Subject, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of the call ``CALLS[name]`` on the device, and the result of the same call on the CPU.

    Raises:
        NotSupported: If the accelerator declares that the device lacks the dtype of the integers, or if the device raises an error for a
            call (such as a matmul of integers) that PyTorch itself implements only for the CPU.
    """
    here, call = CALLS[name]
    subject.needs(str(here.dtype).removeprefix("torch."))
    with may_be_missing(opdb.operators().get(name), (here, (), {})):
        found = call(here.to(subject.device))
    return found, call(here)
