"""Checks of conversions to bool or to a dtype with fewer digits.

A conversion to a dtype with fewer digits rounds to the nearest number or, if two numbers are equally near, to the even one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle.sample_transfer import to_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_WAYS: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "to": lambda x, dtype: x.to(dtype),
    "copy_": lambda x, dtype: torch.zeros_like(x, dtype=dtype).copy_(x),
    "to of a strided tensor": lambda x, dtype: torch.stack([x, x], -1)[..., 1].to(dtype),
    "cat": lambda x, dtype: torch.cat([x, x[:1]]).to(dtype),
}


def check_rounded_conversions(subject: Subject, source: str, target: str) -> None:
    """Convert numbers to another dtype on the device in several ways, and compare each result with the CPU's.

    Unless the target dtype is bool, most of the numbers lie between two neighbouring numbers of the target dtype. Some are beyond the range
    of the target dtype if the source dtype can represent such numbers. If the source dtype is floating-point, some are NaN or infinite.

    The result on the device and the CPU's result must be equal, or both NaN. The sign of a zero is not compared. Differences are recorded
    in the subject.

    Args:
        subject: The plugin under test, with its device.
        source: The dtype of the numbers.
        target: The dtype to which they are converted.
    """
    dtype = getattr(torch, target)
    here = _numbers(getattr(torch, source), dtype)
    for name, convert in _WAYS.items():
        with subject.sample(f"{name}, {source} to {target}", {"dtype": target}):
            found, expected = convert(to_device(here, subject.device), dtype), convert(here, dtype)
            assert found.dtype is dtype, f"the result is {found.dtype}, not {dtype}"
            same = (found.cpu() == expected) | (found.cpu().isnan() & expected.isnan())
            assert bool(same.all()), (
                f"{int((~same).sum())} of {same.numel()} results are wrong; the first is that of {here[~same[: len(here)]][:1].tolist()}"
            )


def _numbers(source: torch.dtype, target: torch.dtype) -> torch.Tensor:
    if target is torch.bool:
        return torch.tensor([0.0, -0.0, 0.3, -0.7, 1e-30, float("nan"), float("inf"), 5.0]).to(source)
    quarters = torch.arange(-9, 10, dtype=torch.float64) / 4  # in units of the distance between two numbers of the target dtype
    digits = torch.finfo(target).eps
    if not source.is_floating_point:
        large = torch.tensor([round(1 / digits) * 2 * scale for scale in (1, 4, 64)], dtype=torch.int64)
        return torch.cat([(one + torch.arange(-9, 10) * one.item() // round(8 / digits)) for one in large] + [-large]).to(source)
    powers = torch.tensor([1.0, 1.5, 2.0, 3.0, 2**-10, 2**9], dtype=torch.float64)
    numbers = (powers[:, None] * (1 + quarters * digits)).flatten()
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, torch.finfo(target).max], dtype=torch.float64)
    beyond = special[4:] * (1 + torch.tensor([digits / 8, digits / 2, digits, 1.0], dtype=torch.float64))
    return torch.cat([numbers, -numbers, special, beyond]).to(source)
