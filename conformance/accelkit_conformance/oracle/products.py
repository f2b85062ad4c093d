"""Products of matrices and vectors, with dimensions of length 0 or 1, and with expanded or transposed operands.

Libraries for such products choose a different kernel for each combination, and read the strides of dimensions of length 1 and of expanded
dimensions in different ways.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name
from torch.utils._pytree import tree_leaves

from accelkit_conformance.oracle.layouts import offset, strided, transposed
from accelkit_conformance.oracle.tolerance import check_form

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LENGTHS = (0, 1, 5)
_Product = Callable[[torch.Tensor, torch.Tensor], Any]


def ternary(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """Return a tensor of this shape whose elements are -1, 0 and 1 in turn, with the dtype and the device of ``like``."""
    return (torch.arange(math.prod(shape)) % 3 - 1).view(shape).to(like.dtype).to(like.device)


def _gradients(function: Callable[..., torch.Tensor]) -> _Product:
    """Return a function that computes the gradients of ``function`` with respect to its two arguments. The output gradient is an expanded
    number."""

    def compute(x: torch.Tensor, weight: torch.Tensor) -> Any:
        leaves = [one.detach().requires_grad_() for one in (x, weight)]
        result = function(*leaves)
        return torch.autograd.grad(result, leaves, result.new_ones(()).expand(result.shape))

    return compute


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight, ternary(weight, len(weight)))


PRODUCTS: Mapping[str, tuple[_Product, str, str]] = {
    "mm": (torch.mm, "mk", "kn"),
    "addmm": (lambda x, y: torch.addmm(y.new_ones(y.shape[1]), x, y), "mk", "kn"),
    "addmm_of_a_matrix": (lambda x, y: torch.addmm(ternary(x, len(x), y.shape[1]), x, y, beta=2, alpha=-1), "mk", "kn"),
    "addmv": (lambda x, y: torch.addmv(ternary(x, len(x)), x, y, beta=2, alpha=0.5), "mk", "k"),
    "bmm": (torch.bmm, "bmk", "bkn"),
    "baddbmm": (lambda x, y: torch.baddbmm(ternary(x, x.shape[1], y.shape[2]), x, y, beta=2, alpha=0.5), "bmk", "bkn"),
    "matmul": (torch.matmul, "bmk", "kn"),
    "linear": (F.linear, "mk", "nk"),
    "linear_with_bias": (_linear, "mk", "nk"),
    "linear_of_batches": (_linear, "bmk", "nk"),
    "linear_of_a_vector": (_linear, "k", "nk"),
    "linear_with_one_weight": (F.linear, "bmk", "k"),
    "gradients_of_linear": (_gradients(F.linear), "mk", "nk"),
    "gradients_of_linear_of_batches": (_gradients(_linear), "bmk", "nk"),
    "gradients_of_linear_with_one_weight": (_gradients(F.linear), "mk", "k"),
    "mv": (torch.mv, "mk", "k"),
    "dot": (torch.dot, "k", "k"),
    "outer": (torch.outer, "m", "n"),
    "einsum": (lambda x, y: torch.einsum("bmk,bnk->bmn", x, y), "bmk", "bnk"),
}
"""The products, by name. Each consists of a function of two tensors, and the names of the dimensions of each tensor."""


def check_product(subject: Subject, name: str) -> None:
    """Compare products with those on the CPU, for all combinations of memory layouts of the two operands and of lengths 1 and 5.

    In further combinations, one of the lengths is 0. The elements are small integers, so that all results are exact in float32 and
    bfloat16. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the product in ``PRODUCTS``.
    """
    product, *dimensions = PRODUCTS[name]
    dtypes = [dtype for dtype in ("float32", "bfloat16") if not subject.lacks(dtype)]
    used = sorted(set("".join(dimensions)) - {"b"})
    for dtype, lengths in itertools.product(dtypes, itertools.product(_LENGTHS, repeat=len(used))):
        if lengths.count(0) > 1:
            continue
        sizes = {"b": 3, **dict(zip(used, lengths, strict=True))}
        shapes = [[sizes[letter] for letter in letters] for letters in dimensions]
        here = [_numbers(shape, start).to(getattr(torch, dtype)) for start, shape in enumerate(shapes)]
        there = [one.to(subject.device) for one in here]
        description = f"{name} of {dtype} tensors of shapes {tuple(shapes[0])} and {tuple(shapes[1])}"
        with subject.sample(description, {"name": name, "dtype": dtype, **sizes}):
            pairs = zip(itertools.product(*map(_layouts, here)), itertools.product(*map(_layouts, there)), strict=True)
            for ((x_layout, x), (y_layout, y)), ((_, x_there), (_, y_there)) in pairs:
                check_equal(subject, f"{x_layout} and {y_layout}", product(x_there, y_there), product(x, y))


def check_equal(subject: Subject, description: str, found: Any, expected: Any) -> None:
    """Check that each result is on the device, and that its dtype, shape and elements are those of the expected result.

    Raises:
        AssertionError: If a result is wrong. The message begins with ``description``.
    """
    for mine, right in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        check_form(mine, right, subject.device)
        wrong = mine.cpu() != right
        assert not bool(wrong.any()), (
            f"{description}: {int(wrong.sum())} of {right.numel()} elements are wrong: {_first(mine, right, wrong)}"
        )


def _first(found: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    place = int(wrong.flatten().to(torch.uint8).argmax())
    return f"element {place} is {found.flatten()[place].item()}, not {expected.flatten()[place].item()}"


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
    if numbers.ndim > 1:
        yield "transposed", transposed(numbers)
    if not numbers.numel():
        return
    yield "one expanded number", numbers.flatten()[0].expand(numbers.shape)
    if numbers.ndim > 1:
        yield "one expanded row", numbers[..., :1, :].expand(numbers.shape)
        yield "one expanded column", numbers[..., :1].expand(numbers.shape)
    if numbers.ndim > 2:
        yield "one expanded matrix", numbers[:1].expand(numbers.shape)
