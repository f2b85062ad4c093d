"""Functions of complex numbers whose magnitudes are so large or so small that their squares overflow or underflow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_MAGNITUDES = {torch.complex64: (1e-30, 1e-22, 1.0, 1e22, 1e30), torch.complex128: (1e-290, 1e-180, 1.0, 1e180, 1e290)}
_DIRECTIONS = (1 + 1j, 1 - 0.25j, -0.5 + 1j, -1 - 1j, 1 + 0j, 0 - 1j)
_TOLERANCE = {torch.complex64: 1e-5, torch.complex128: 1e-12}

FUNCTIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "div": lambda x: x / x.roll(1),
    "div_of_equal_magnitudes": lambda x: x / (x * (0.5 - 0.25j)),
    "div_of_a_number": lambda x: x / (2 - 1j),
    "div_of_zero": lambda x: (x * 0) / x,
    "mul": lambda x: x * x.roll(7),
    "square": lambda x: x.square(),
    "pow": lambda x: x**2,
    "rsqrt": lambda x: x.rsqrt(),
    "reciprocal": lambda x: x.reciprocal(),
    "abs": lambda x: x.abs(),
    "angle": lambda x: x.angle(),
    "sgn": lambda x: x.sgn(),
    "sqrt": lambda x: x.sqrt(),
    "log": lambda x: x.log(),
    "log2": lambda x: x.log2(),
    "log10": lambda x: x.log10(),
    "acos": lambda x: x.acos(),
    "asin": lambda x: x.asin(),
    "atan": lambda x: x.atan(),
    "acosh": lambda x: x.acosh(),
    "asinh": lambda x: x.asinh(),
    "atanh": lambda x: x.atanh(),
    "tanh": lambda x: x.tanh(),
    "logcumsumexp": lambda x: x.view(-1, 3).logcumsumexp(1).flatten().real,
}
"""The functions, by name. Each takes a complex tensor with one dimension. ``logcumsumexp`` takes ``_EXPONENTS``.
``logaddexp`` is left out, because torch gives NaN for such numbers in complex64 on the CPU."""
_EXPONENTS = [number for order in itertools.permutations((1e3, 1e-18 + 1e4j, 1e2 + 1e-8j)) for number in order]
_ON_CUTS: Mapping[str, tuple[complex, ...]] = {
    **dict.fromkeys(("acos", "asin", "atanh"), (1 + 0j,)),
    "acosh": (0, 1 + 0j),
    **dict.fromkeys(("atan", "asinh", "tanh"), (0 - 1j,)),
}
"""Directions of numbers that are not tested, by function. For inverse functions, they lie on branch cuts, where the sign of a zero decides
which side of the cut is meant. For ``tanh``, they are imaginary, and the imaginary part is an angle that may be very large."""


def _numbers(name: str, magnitudes: tuple[float, ...]) -> list[complex]:
    if name == "logcumsumexp":
        return _EXPONENTS
    left_out = _ON_CUTS.get(name, ())
    return [*([] if 0 in left_out else [0]), *(size * one for size in magnitudes for one in _DIRECTIONS if one not in left_out)]


def check_magnitudes(subject: Subject, name: str) -> None:
    """Check a function of complex64 and complex128 numbers of very different magnitudes against the same function in complex128 on the CPU.

    Results whose absolute values are outside the dtype's range of normal numbers, or within a factor of 4 of its limits, are not compared,
    except for zeros. A failure is recorded in the subject if the results are not on the device, or if the relative error of a result is
    greater than 1e-5 for complex64, or 1e-12 for complex128. For zeros, the absolute error is used.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function in ``FUNCTIONS``.
    """
    for dtype, magnitudes in _MAGNITUDES.items():
        if subject.lacks(str(dtype).removeprefix("torch.")):
            continue
        values = torch.tensor(_numbers(name, magnitudes), dtype=dtype)
        with subject.sample(f"{name} in {dtype}", {"name": name, "dtype": str(dtype)}):
            exact = FUNCTIONS[name](values.to(torch.complex128))
            found = FUNCTIONS[name](values.to(subject.device))
            subject.assert_on_device(found)
            here = found.cpu().to(exact.dtype)
            limits = torch.finfo(dtype)
            is_compared = (exact == 0) | (exact.abs() > limits.tiny * 4) & (exact.abs() < limits.max / 4)
            is_wrong = is_compared & ~((here - exact).abs() <= torch.where(exact == 0, 1.0, exact.abs()) * _TOLERANCE[dtype])
            wrong = [f"{values[at].item()}: {here[at].item()}, not {exact[at].item()}" for at in is_wrong.nonzero().flatten().tolist()]
            assert not wrong, f"{name} of {wrong[0]} ({len(wrong)} of {int(is_compared.sum())} numbers)"
