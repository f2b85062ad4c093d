"""Products of matrices and vectors whose dimensions have many different lengths.

Libraries for such products choose a kernel by the lengths, and divide each dimension into blocks. The last block is often incomplete.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves

from accelkit_conformance.oracle.layouts import narrowed, offset, transposed
from accelkit_conformance.oracle.pairwise import covering_rows
from accelkit_conformance.oracle.products import PRODUCTS, check_equal
from accelkit_conformance.oracle.sample_transfer import to_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64")
"""The dtypes in which the products are tested."""

_LENGTHS = ("64", "1", "2", "17", "33", "129", "257", "1025", "4099")
_NUM_BATCHES = ("3", "1", "80")
_MOST_MULTIPLICATIONS = 2**20
_MOST_ELEMENTS = 2**18
_LARGE: Sequence[Mapping[str, int]] = (
    {"b": 1, "m": 14, "k": 4096, "n": 1000},
    {"b": 1, "m": 31, "k": 10_007, "n": 65},
    {"b": 1, "m": 70_001, "k": 3, "n": 5},
    {"b": 1, "m": 3, "k": 5, "n": 70_001},
    {"b": 1, "m": 17, "k": 33_001, "n": 19},
    {"b": 1, "m": 33_001, "k": 17, "n": 19},
)
"""Lengths that exceed ``_MOST_MULTIPLICATIONS`` or ``_MOST_ELEMENTS``, or do not occur in ``_LENGTHS``."""
_LAYOUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": transposed,
    "with an offset": offset,
    "with gaps between rows": narrowed,
}
_MOST_TERMS = 128


def check_product_sizes(subject: Subject, name: str, dtype: str) -> None:
    """Compare a product with the CPU's in float32 or complex64, for many lengths of the dimensions and several layouts of the operands.

    All results are exact in every dtype, in whatever order the terms are added. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the product in ``PRODUCTS``.
        dtype: The dtype of the operands, one of ``DTYPES``.
    """
    product, *dimensions = PRODUCTS[name]
    chosen = getattr(torch, dtype)
    wide = torch.complex64 if chosen.is_complex else torch.float32
    for lengths, layouts in _sizes(*dimensions):
        shapes = [[lengths[letter] for letter in letters] for letters in dimensions]
        share = _share_of_nonzero(name, lengths)
        operands = [
            _LAYOUTS[layout](_numbers(shape, share, seed, wide)) for seed, (shape, layout) in enumerate(zip(shapes, layouts, strict=True))
        ]
        description = f"{name} of {dtype} tensors of shapes {tuple(shapes[0])} and {tuple(shapes[1])}"
        with subject.sample(description, {"name": name, "dtype": dtype, **lengths}):
            expected = [one.to(chosen) for one in tree_leaves(product(*operands))]
            check_equal(subject, " and ".join(layouts), product(*(to_device(one.to(chosen), subject.device) for one in operands)), expected)


@functools.cache
def _sizes(x: str, y: str) -> list[tuple[dict[str, int], list[str]]]:
    """Return combinations of lengths of the dimensions, by name, and of layouts of the two operands.

    They contain every pair of values that ``_MOST_MULTIPLICATIONS`` and ``_MOST_ELEMENTS`` allow, and the lengths in ``_LARGE``.

    Args:
        x, y: The names of the dimensions of the operands.
    """
    names = "".join(dict.fromkeys(x + y))
    operands = (x, y, names.replace("k", ""))

    def is_allowed(row: Mapping[str, str]) -> bool:
        lengths = {name: int(row.get(name, "1")) for name in names}
        elements = max(math.prod(lengths[name] for name in letters) for letters in operands)
        return math.prod(lengths.values()) <= _MOST_MULTIPLICATIONS and elements <= _MOST_ELEMENTS

    lengths = {name: _NUM_BATCHES if name == "b" else _LENGTHS for name in names}
    rows = covering_rows({**lengths, "layout of x": [*_LAYOUTS], "layout of y": [*_LAYOUTS]}, is_allowed)
    found = [({name: int(row[name]) for name in names}, [row["layout of x"], row["layout of y"]]) for row in rows]
    return found + [({name: row[name] for name in names}, [layout] * 2) for row in _LARGE for layout in ("contiguous", "with an offset")]


def _share_of_nonzero(name: str, lengths: Mapping[str, int]) -> float:
    """Return the share of the elements that must not be 0, so that about 128 terms of each sum or fewer are not 0.

    The sum of their magnitudes is then an integer below 256, which even bfloat16 represents exactly. The terms of a product are products of
    two elements. Those of the gradients are single elements, because the output gradient is 1.
    """
    if name.startswith("gradients"):
        return min(1.0, _MOST_TERMS / max(lengths.get("n", 1), lengths.get("b", 1) * lengths["m"]))
    return min(1.0, math.sqrt(_MOST_TERMS / lengths.get("k", 1)))


def _numbers(shape: Sequence[int], share: float, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Return random numbers, of which the given share is -1 or 1, and the others are 0. If the dtype is complex, these are the real and the
    imaginary parts."""
    numbers = _random(seed)[: math.prod(shape) * (1 + dtype.is_complex)]
    signs = numbers.sign() * (numbers.abs() < share)
    return (torch.view_as_complex(signs.view(-1, 2)) if dtype.is_complex else signs).view(*shape)


@functools.cache
def _random(seed: int) -> torch.Tensor:
    """Return random numbers between -1 and 1."""
    return torch.rand(2**23, generator=torch.Generator().manual_seed(seed)) * 2 - 1
