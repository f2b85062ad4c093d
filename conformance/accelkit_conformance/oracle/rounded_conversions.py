"""Checks of conversions to bool or to a dtype with fewer digits.

A conversion to a dtype with fewer digits rounds to the nearest number or, if two numbers are equally near, to the even one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle.sample_transfer import to_device
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_WAYS: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "to": lambda x, dtype: x.to(dtype),
    "copy_": lambda x, dtype: torch.zeros_like(x, dtype=dtype).copy_(x),
    "to of a strided tensor": lambda x, dtype: torch.stack([x, x], -1)[..., 1].to(dtype),
    "cat": lambda x, dtype: torch.cat([x, x[:1]]).to(dtype),
}

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
"""The names of the float8 dtypes."""


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


def check_float8_conversions(subject: Subject, dtype: str, other: str) -> None:
    """Convert all numbers of a float8 dtype to another dtype, and numbers of the other dtype to the float8 dtype, and compare the results
    with the CPU's.

    The numbers are repeated until there are about 20,000 of them. The results must be equal, with the same signs of zeros, or both NaN.
    Differences are recorded in the subject. If the device raises an error, the conversion is unsupported.

    Args:
        subject: The plugin under test, with its device.
        dtype: The float8 dtype.
        other: The other dtype.
    """
    chosen, wide = getattr(torch, dtype), getattr(torch, other)
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(chosen).float()
    codes = codes[(codes == 0) | ~(codes.abs() < torch.finfo(wide).tiny)]  # a device may flush numbers that are subnormal in float16
    finite = codes[codes.isfinite()].unique().double()
    between = torch.cat([finite[:-1] + (finite[1:] - finite[:-1]) * part for part in (0.25, 0.5, 0.75)])
    between = between[between.abs() >= torch.finfo(wide).tiny]
    for source, target, numbers in ((chosen, wide, codes), (wide, chosen, torch.cat([codes.double(), between]))):
        here = numbers.to(source).repeat(20_000 // len(numbers) + 1)
        for name, convert in _WAYS.items():
            with subject.sample(f"{name}, {source} to {target}", {"dtype": dtype}):
                expected = convert(here, target)
                try:
                    found = convert(here.to(subject.device), target).cpu()
                except (RuntimeError, NotImplementedError) as error:
                    raise NotSupported(f"the device does not convert {source} to {target}: {error}") from error
                assert found.dtype is target, f"the result is {found.dtype}, not {target}"
                mine, theirs = found.float(), expected.float()
                same = (mine == theirs) & (mine.signbit() == theirs.signbit()) | mine.isnan() & theirs.isnan()
                assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} results are wrong, such as {mine[~same][0].item()}"


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
