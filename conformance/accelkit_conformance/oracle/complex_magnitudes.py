"""Functions of complex numbers whose magnitudes are so large or so small that their squares overflow or underflow in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_MAGNITUDES = (1e-30, 1e-22, 1.0, 1e22, 1e30)
_DIRECTIONS = (1 + 1j, 1 - 0.25j, -0.5 + 1j, -1 - 1j, 1 + 0j, 0 - 1j)
_TOLERANCE = 1e-5

FUNCTIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "div": lambda x: x / x.roll(1),
    "div_of_equal_magnitudes": lambda x: x / (x * (0.5 - 0.25j)),
    "div_of_a_number": lambda x: x / (2 - 1j),
    "reciprocal": lambda x: x.reciprocal(),
    "abs": lambda x: x.abs(),
    "angle": lambda x: x.angle(),
    "sgn": lambda x: x.sgn(),
    "sqrt": lambda x: x.sqrt(),
    "log": lambda x: x.log(),
}
"""The functions, by name. Each takes a complex tensor with one dimension."""


def check_magnitudes(subject: Subject, name: str) -> None:
    """Check a function of complex64 numbers of very different magnitudes against the same function in complex128 on the CPU.

    Results whose absolute values are outside float32's range of normal numbers, or within a factor of 4 of its limits, are not compared.
    A failure is recorded in the subject if the results are not on the device, or if the relative error of a result is greater than 1e-5.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function in ``FUNCTIONS``.
    """
    values = torch.tensor([size * direction for size in _MAGNITUDES for direction in _DIRECTIONS], dtype=torch.complex64)
    with subject.sample(name, {"name": name}):
        exact = FUNCTIONS[name](values.to(torch.complex128))
        found = FUNCTIONS[name](values.to(subject.device))
        subject.assert_on_device(found)
        here = found.cpu().to(exact.dtype)
        limits = torch.finfo(torch.float32)
        is_compared = (exact.abs() > limits.tiny * 4) & (exact.abs() < limits.max / 4)
        is_wrong = is_compared & ~((here - exact).abs() <= exact.abs() * _TOLERANCE)
        wrong = [f"{values[at].item()}: {here[at].item()}, not {exact[at].item()}" for at in is_wrong.nonzero().flatten().tolist()]
        assert not wrong, f"{name} of {wrong[0]} ({len(wrong)} of {int(is_compared.sum())} numbers)"
