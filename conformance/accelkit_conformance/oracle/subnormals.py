"""Calls that must leave subnormal numbers unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.tolerance import check_form
from accelkit_conformance.results import Absent, NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

NUMBERS = torch.tensor([1e-40, -3e-42, 1.4e-45, 5e-39, 1e-38], dtype=torch.float32)
"""Subnormal numbers."""

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul": lambda x: x * 1.0,
    "add": lambda x: x + 0.0,
    "clone": lambda x: x.clone(),
    "neg": lambda x: x.neg().neg(),
    "where": lambda x: torch.where(x != 0, x, 1.0),
    "div": lambda x: x / 1.0,
}
"""The calls, by name."""


def _integers(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Return small integers. At most one number in five is 0."""
    return (torch.arange(torch.Size(shape).numel()) * 3 % 5 - 1).view(shape).to(dtype)


def _gradient(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that takes an output gradient for ``function``, and returns the gradients of all inputs as one vector.

    The inputs have these shapes. Their elements are small integers.
    """

    def compute(output_gradient: torch.Tensor) -> torch.Tensor:
        leaves = [_integers(*shape).to(output_gradient.device).requires_grad_() for shape in shapes]
        result = function(*leaves)
        gradients = torch.autograd.grad(result, leaves, output_gradient.view(-1)[: result.numel()].view(result.shape))
        return torch.cat([one.flatten() for one in gradients])

    return compute


HALF: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": lambda x: x.clone(),
    "to": lambda x: x.float().half(),
    "mul": lambda x: x * 3,
    "add": lambda x: x + x,
    "sum": lambda x: x.sum(0),
    "relu": lambda x: x.relu(),
    "where": lambda x: torch.where(x != 0, x, 1.0),
    "mm": lambda x: x @ _integers(64, 16).to(x.device),
    "bmm": lambda x: x.view(2, 2, 64) @ _integers(2, 64, 16).to(x.device),
    "linear": lambda x: F.linear(x, _integers(16, 64).to(x.device)),
    "conv2d": lambda x: F.conv2d(x.view(1, 4, 8, 8), _integers(3, 4, 3, 3).to(x.device)),
    "gradient_of_mul": _gradient(torch.mul, (4, 64), (4, 64)),
    "gradient_of_linear": _gradient(F.linear, (4, 64), (16, 64)),
    "gradient_of_matmul": _gradient(torch.matmul, (2, 4, 64), (64, 16)),
    "gradient_of_conv2d": _gradient(F.conv2d, (1, 4, 8, 8), (3, 4, 3, 3)),
}
"""Functions of a float16 matrix of shape (4, 64), by name."""
_PRODUCTS = ("mm", "bmm", "linear", "conv2d", "gradient_of_linear", "gradient_of_matmul", "gradient_of_conv2d")
"""Names of functions that use matrix instructions, which flush subnormal numbers on some devices, such as AMD's MI200."""


def check_half_subnormals(subject: Subject, name: str) -> None:
    """Compare the results of the function ``HALF[name]`` of subnormal float16 numbers with those that the CPU computes in float64.

    Raises:
        NotSupported: If the function is in ``_PRODUCTS``, and the device treats subnormal numbers as 0.
        Absent: If another function treats them as 0.
        AssertionError: If an element is wrong.
    """
    function = HALF[name]
    numbers = _integers(4, 64) * 2.0**-24
    expected = function(numbers)
    found = function(numbers.to(subject.device))
    check_form(found, expected, subject.device)
    if not found.any().item() and expected.any().item():
        if name in _PRODUCTS:
            raise NotSupported("matrix products treat subnormal float16 numbers as 0")
        raise Absent("they are flushed to zero")
    assert torch.equal(found.cpu(), expected), f"{int((found.cpu() != expected).sum())} of {expected.numel()} elements are wrong"
