"""Comparison of a program's results on the device with its results on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.op_compare import flat
from accelkit_conformance.oracle.tolerance import check_form

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Program = Callable[[torch.device], Any]
"""A function that computes on a device and returns nested tensors and numbers. Its results are the same on every device."""

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}


def random_values(device: torch.device, *shape: int, seed: int = 0) -> torch.Tensor:
    """Return normally distributed numbers on the device. They are drawn on the CPU, and depend only on the shape and the seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(device)


def integers(like: torch.Tensor, *values: int) -> torch.Tensor:
    """Return an int64 tensor with these values on the device of ``like``."""
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def made(make: Any, device: torch.device, *, seed: int = 4) -> Any:
    """Create a module on the CPU, with the same parameters every time, and return it on the device."""
    torch.default_generator.manual_seed(seed)
    return make().to(device)


def compare_program(subject: Subject, name: str, program: Program) -> None:
    """Run a program on the CPU and on the device, and compare the results.

    For an element of the CPU's result, let S be its absolute value plus the largest finite absolute value in its tensor. The error of the
    device's element may be at most 1e-7 plus S times a factor: 0.05 for bfloat16, 0.01 for float16, and 1e-4 for all other floating-point
    and complex dtypes. The error of a complex number is the absolute value of the difference. Integers and booleans must be equal. Results
    that are not tensors must be equal, except that a Python float may have a relative error of 1e-4.

    Raises:
        NotSupported: If the program needs a dtype that the device lacks.
        AssertionError: If the number of results differs, if a result has a wrong dtype, shape, layout, value or ``requires_grad``, or if a
            tensor is not on the device.
    """
    cpu = torch.device("cpu")
    lacking = lacking_dtypes(subject, lambda: program(cpu))
    subject.needs(*lacking)
    expected, found = flat(program(cpu)), flat(program(subject.device))
    assert len(found) == len(expected), f"{name} gave {len(found)} results, not {len(expected)}"
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            same = mine == theirs or (isinstance(theirs, float) and abs(mine - theirs) <= 1e-4 * abs(theirs))
            assert same, f"result {number} of {name} is {mine!r}, not {theirs!r}"
            continue
        check_form(mine, theirs, subject.device)
        assert mine.requires_grad == theirs.requires_grad, f"requires_grad of result {number} of {name} is {mine.requires_grad}"
        wrong = _difference(mine.detach().cpu(), theirs.detach())
        assert not wrong, f"result {number} of {name}: {wrong}"


def _difference(mine: torch.Tensor, theirs: torch.Tensor) -> str:
    """Return how two tensors of the same shape and dtype differ, or "" if they are equal within the tolerance of ``compare_program``."""
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return "" if torch.equal(mine, theirs) else f"gave {mine.flatten()[:8].tolist()}, not {theirs.flatten()[:8].tolist()}"
    tolerance = _TOLERANCE.get(theirs.dtype, 1e-4)
    scale = float(theirs[theirs.isfinite()].abs().max()) if theirs.isfinite().any() else 0.0
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    if torch.allclose(mine.to(wide), theirs.to(wide), rtol=tolerance, atol=tolerance * scale + 1e-7, equal_nan=True):
        return ""
    return f"gave {mine.flatten()[:8].tolist()}, not {theirs.flatten()[:8].tolist()} (the first eight elements)"
