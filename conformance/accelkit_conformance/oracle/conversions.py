"""Checks of copies that convert to another dtype: rounding, overflow, special values and the lower bits of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_REAL = tuple(name for name in DTYPES if not name.startswith("complex"))
_FLOATS = ("float32", "bfloat16", "float16", "float64")


def _source(start: str, end: str, *, with_subnormals: bool) -> torch.Tensor:
    """Return numbers whose conversion from the dtype ``start`` to the dtype ``end`` is well defined.

    The numbers have many magnitudes. If both dtypes are floating-point, there are also numbers halfway between two numbers of the target
    dtype, numbers just above and below these, infinities, NaN and negative zero. In this case, ``with_subnormals=False`` leaves out nonzero
    numbers whose absolute values are less than twice the target dtype's smallest normal number. All returned floating-point numbers can be
    represented in float32, because the CPU converts float64 to half precision through float32.
    """
    source, target = getattr(torch, start), getattr(torch, end)
    generator = torch.Generator().manual_seed(3)
    if not source.is_floating_point:
        return _integers(source, target, generator)
    wide = (torch.rand(2000, generator=generator) * 2 - 1) * 2.0 ** torch.randint(-30, 30, (2000,), generator=generator)
    if not target.is_floating_point:
        if target is torch.bool:
            return torch.cat([wide, torch.tensor([0.0, -0.0, 0.25, 1e-30, float("inf"), float("nan")])]).to(source)
        largest = min(torch.iinfo(target).max, 2.0**24, torch.finfo(source).max)
        values = wide % largest if not torch.iinfo(target).min else wide.fmod(largest)
        return values.clamp(max=largest - largest / 8).to(source)
    step = torch.finfo(target).eps
    places = torch.arange(64.0)
    ties = 1 + places * step / 2
    beside = [ties * (1 + sign * 2.0**-22) for sign in (-1, 1)]
    values = torch.cat([wide, ties, -ties, *beside, *(ties * 2.0**power for power in (-10, 10))])
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 65504, 65519, 65520, 7e4, -1e6, 3e38, -3.4e38])
    values = torch.cat([values, special]).to(source)
    is_normal = (values.double().abs() >= torch.finfo(target).tiny * 2) | (values == 0) | values.isnan()
    return values if with_subnormals else values[is_normal]


def _integers(source: torch.dtype, target: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return integers of many magnitudes. If the target is a half-precision dtype, the integers have at most 24 bits, because the CPU
    converts them through float32."""
    if source is torch.bool:
        return torch.arange(9) % 3 == 0
    bits = min(torch.iinfo(source).bits - 1, 24 if target in (torch.float16, torch.bfloat16) else 63)
    values = torch.randint(-(2**63), 2**63 - 1, (3000,), generator=generator) >> torch.arange(3000) % bits
    values = values >> max(0, 63 - bits)
    return torch.cat([values, torch.arange(-300, 300)]).to(source)


def _ways(device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    return {
        "to the device": lambda values: values.to(device, dtype).cpu(),
        "copy_ to the device": lambda values: torch.zeros(values.shape, dtype=dtype, device=device).copy_(values).cpu(),
        "on the device": lambda values: values.to(device).to(dtype).cpu(),
        "copy_ on the device": lambda values: torch.zeros(values.shape, dtype=dtype, device=device).copy_(values.to(device)).cpu(),
        "to the host": lambda values: values.to(device).to("cpu", dtype),
        "copy_ to the host": lambda values: torch.zeros(values.shape, dtype=dtype).copy_(values.to(device)),
    }


def check_conversions(subject: Subject, start: str) -> None:
    """Check the conversions from one dtype to float32 and to every other dtype that the device declares and that is not complex.

    Results whose dtype or numbers differ from the CPU's are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        start: The name of the source's dtype, which is not complex.
    """
    for end in _REAL:
        if end == start or (end != "float32" and not subject.capabilities.can(f"dtype.{end}")):
            continue
        values = _source(start, end, with_subnormals=subject.capabilities.can("subnormals"))
        expected = values.to(getattr(torch, end))
        for way, convert in _ways(subject.device, expected.dtype).items():
            with subject.sample(f"{start} to {end}, {way}", {"source": start, "target": end, "way": way}):
                found = convert(values)
                assert found.dtype == expected.dtype, f"the copy is {found.dtype}"
                is_equal = found == expected
                if end in _FLOATS:
                    is_equal = (is_equal & (found.signbit() == expected.signbit())) | (found.isnan() & expected.isnan())
                wrong = (~is_equal).nonzero().flatten().tolist()
                assert not wrong, (
                    f"{len(wrong)} of {len(values)} numbers are wrong: {values[wrong[0]].item()!r} became {found[wrong[0]].item()!r}, "
                    f"not {expected[wrong[0]].item()!r}"
                )
