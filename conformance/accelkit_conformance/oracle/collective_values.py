"""The tensors that collectives are tested with, and their reductions, computed on the CPU in integers or in double precision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

_FACTORS = {"int64": 2**53 + 1, "int32": 2**24 + 1, "float64": 1 + 2**-45, "float32": 1 + 2**-18}
"""Factors by dtype. The product of a dtype's factor and a small integer cannot be represented in a dtype of half the size."""


def values(rank: int, length: int, dtype: str, *, shift: int = 0, is_product: bool = False) -> torch.Tensor:
    """Return the tensor of a rank: integers from -2 to 2 (from 0 to 4 if the dtype is uint8), multiplied by the factor of their dtype in
    ``_FACTORS``.

    The integers depend on the rank and on the index of the element. ``shift`` is added to each integer before the multiplication, and
    integers above the largest wrap around to the smallest. A dtype that is not in ``_FACTORS`` has the factor 1. If the dtype is bool, the
    integers are taken modulo 2 instead.

    Sums of the tensors of three ranks are exact. If ``is_product``, the integers are not multiplied by the factor, so that products over
    three ranks are exact too, and 3 replaces 0, unless the dtype is bool.
    """
    numbers = (torch.arange(length) * 7 + rank * 3 + shift) % 5 - (0 if dtype in ("uint8", "bool") else 2)
    if dtype == "bool":
        return numbers.remainder(2).bool()
    if is_product:
        numbers[numbers == 0] = 3
    return numbers.to(getattr(torch, dtype)) * (1 if is_product else _FACTORS.get(dtype, 1))


def reduced(tensors: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    """Return the reduction of ``tensors``, which has one tensor for each rank. The result has the dtype of the tensors.

    The tensors are combined in the order of the ranks, in int64, complex128 or float64.
    """
    dtype = tensors[0].dtype
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point or reduction == "AVG" else torch.int64
    steps: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
        "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
    }  # fmt: skip
    total = functools.reduce(steps[reduction], [one.to(wide) for one in tensors])
    return (total / len(tensors) if reduction == "AVG" else total).to(dtype)
