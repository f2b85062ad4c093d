"""Products of matrices and vectors, with dimensions of length 1 and with operands that are expanded, transposed or views with an offset.

Libraries for such products choose a different kernel for each combination, and read the strides of dimensions of length 1 and of expanded
dimensions in different ways.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.layouts import offset, strided, transposed

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LENGTHS = (1, 5)
_Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _gradients(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    of_x, of_weight = torch.autograd.grad(F.linear(x, weight).sum(), (x, weight))  # the output gradient is an expanded number
    return torch.cat([of_x.flatten(), of_weight.flatten()])


PRODUCTS: Mapping[str, tuple[_Product, str, str]] = {
    "mm": (torch.mm, "mk", "kn"),
    "addmm": (lambda x, y: torch.addmm(torch.ones_like(y[:1]), x, y), "mk", "kn"),
    "bmm": (torch.bmm, "bmk", "bkn"),
    "matmul": (torch.matmul, "bmk", "kn"),
    "linear": (F.linear, "mk", "nk"),
    "gradients_of_linear": (_gradients, "mk", "nk"),
    "mv": (torch.mv, "mk", "k"),
    "dot": (torch.dot, "k", "k"),
    "outer": (torch.outer, "m", "n"),
    "einsum": (lambda x, y: torch.einsum("bmk,bnk->bmn", x, y), "bmk", "bnk"),
}
"""The products, by name. Each consists of a function of two tensors, and the names of the dimensions of each tensor."""


def check_product(subject: Subject, name: str) -> None:
    """Compare products with those on the CPU, for all combinations of memory layouts of the two operands and of lengths 1 and 5.

    The elements are small integers, so that all results are exact in float32 and bfloat16. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the product in ``PRODUCTS``.
    """
    product, *dimensions = PRODUCTS[name]
    dtypes = [dtype for dtype in ("float32", "bfloat16") if not subject.lacks(dtype)]
    used = sorted(set("".join(dimensions)) - {"b"})
    for dtype, lengths in itertools.product(dtypes, itertools.product(_LENGTHS, repeat=len(used))):
        sizes = {"b": 3, **dict(zip(used, lengths, strict=True))}
        shapes = [[sizes[letter] for letter in letters] for letters in dimensions]
        here = [_numbers(shape, start).to(getattr(torch, dtype)) for start, shape in enumerate(shapes)]
        there = [one.to(subject.device) for one in here]
        description = f"{name} of {dtype} tensors of shapes {tuple(shapes[0])} and {tuple(shapes[1])}"
        with subject.sample(description, {"name": name, "dtype": dtype, **sizes}):
            pairs = zip(itertools.product(*map(_layouts, here)), itertools.product(*map(_layouts, there)), strict=True)
            for ((x_layout, x), (y_layout, y)), ((_, x_there), (_, y_there)) in pairs:
                expected, found = product(x, y), product(x_there, y_there)
                is_equal = found.device == subject.device and found.shape == expected.shape and torch.equal(found.cpu(), expected)
                assert is_equal, f"{description}, {x_layout} and {y_layout}, is {found.tolist()}, not {expected.tolist()}"


def _numbers(shape: list[int], start: int) -> torch.Tensor:
    numbers = torch.arange(torch.Size(shape).numel()) * 5 + start
    return (numbers % 7 - 3).to(torch.float32).view(shape)


def _layouts(numbers: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors of the same shape as ``numbers`` in several memory layouts, each preceded by a description.

    The elements of most of these tensors are those of ``numbers``. An expanded tensor repeats the first elements.
    """
    yield "contiguous", numbers
    yield "with an offset", offset(numbers)
    yield "with gaps", strided(numbers)
    yield "one expanded number", numbers.flatten()[0].expand(numbers.shape)
    if numbers.ndim > 1:
        yield "transposed", transposed(numbers)
        yield "one expanded row", numbers[..., :1, :].expand(numbers.shape)
        yield "one expanded column", numbers[..., :1].expand(numbers.shape)
