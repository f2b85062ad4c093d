"""Calls with a tensor on the device and a 0-d tensor on the CPU. torch's pointwise operators accept the 0-d tensor as if it were a
number."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, scalar: torch.cat([x + scalar, scalar + x]),
    "sub": lambda x, scalar: scalar - x,
    "mul": lambda x, scalar: torch.cat([x * scalar, scalar * x]),
    "div": lambda x, scalar: x / scalar,
    "pow": lambda x, scalar: x**scalar,
    "rpow": lambda x, scalar: scalar**x,
    "rdiv": lambda x, scalar: scalar / (x + 1),
    "floor_divide": lambda x, scalar: torch.cat([x // (scalar * 2 + 1), scalar // (x + 1)]),
    "remainder": lambda x, scalar: torch.cat([x % (scalar * 2 + 1), scalar % (x + 1)]),
    "fmod": lambda x, scalar: torch.cat([torch.fmod(x, scalar * 2 + 1), torch.fmod(scalar, x + 1)]),
    "bitwise": lambda x, scalar: (x & scalar) + (scalar | x) + (x ^ scalar),
    "shifts": lambda x, scalar: (x << scalar.abs()) + (scalar.abs() << x) + (x >> scalar.abs()),
    "atan2": lambda x, scalar: torch.cat([torch.atan2(x, scalar), torch.atan2(scalar, x)]),
    "hypot": lambda x, scalar: torch.hypot(scalar, x),
    "maximum": lambda x, scalar: torch.cat([torch.maximum(x, scalar), torch.maximum(scalar, x)]),
    "minimum": lambda x, scalar: torch.minimum(scalar, x),
    "lt": lambda x, scalar: torch.cat([x < scalar, scalar < x]),
    "ge": lambda x, scalar: scalar >= x,
    "eq": lambda x, scalar: torch.cat([x == scalar, scalar == x]),
    "logical_and": torch.logical_and,  # torch creates its result on the device of the first operand
    "copysign": lambda x, scalar: torch.cat([torch.copysign(x, scalar), torch.copysign(scalar, x)]),
    "xlogy": lambda x, scalar: torch.cat([torch.xlogy(x, scalar.abs()), torch.xlogy(scalar, x)]),
    "clamp": lambda x, scalar: torch.clamp(x, min=scalar),
    "alpha": lambda x, scalar: torch.cat([torch.add(x, scalar, alpha=2), torch.add(scalar, x, alpha=2)]),
    "where": lambda x, scalar: torch.cat([torch.where(x > 2, x, scalar), torch.where(x > 2, scalar, x)]),
    "add_": lambda x, scalar: x.clone().add_(scalar),
    "mul_": lambda x, scalar: x.clone().mul_(scalar),
    "fill_": lambda x, scalar: x.clone().fill_(scalar),
    "copy_": lambda x, scalar: x.clone().copy_(scalar),
    "masked_fill": lambda x, scalar: x.masked_fill(x > 2, scalar),
}
"""The calls, by name. Each takes a tensor and a 0-d tensor."""


_DTYPES = ("float32", "float16", "int64", "int32", "bool")
_VALUES = {torch.float32: (-1.0, 0.0, 0.5, 3.0), torch.int64: (-1, 0, 1, 2, 3)}


def check_host_scalars(subject: Subject, name: str) -> None:
    """Call a function with a tensor on the device and a 0-d tensor on the CPU, and compare the results with those for two CPU tensors.

    The tensor has one of ``_DTYPES``, and the 0-d tensor is float32 or int64. The 0-d tensor with the value 3 has its own storage, or is
    an element of a matrix; the 0-d tensors with other values have their own storages. Calls that the CPU rejects, and calls that need a
    dtype which the device lacks, are left out. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function in ``CALLS``.
    """
    call = CALLS[name]
    for dtype, (kind, values) in itertools.product(_DTYPES, _VALUES.items()):
        here = torch.linspace(0.5, 4, 15).view(3, 5).to(getattr(torch, dtype))
        table = torch.arange(1, 9, dtype=kind).view(2, 4)
        scalars = {f"the number {value}": torch.tensor(value, dtype=kind) for value in values} | {
            "an element of a row": table[0][2],
            "an element of a matrix": table[1, 1],
            "an element of a transposed matrix": table.t()[3, 1],
        }
        for place, scalar in scalars.items():
            try:
                expected = call(here, scalar)
            except (RuntimeError, TypeError):  # the CPU does not support these arguments
                continue
            if lacking_dtypes(subject, lambda: (here, call(here, scalar))):  # noqa: B023
                continue
            with subject.sample(f"{name} of {dtype} and {kind}, {place}", {"dtype": str(kind), "tensor": dtype}):
                check_result(call(here.to(subject.device), scalar), expected, None, subject.device)
