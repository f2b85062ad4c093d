"""Checks of type promotion: on the device, operators called with two arguments of different dtypes give the same results as on
the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.known_differences import may_be_missing
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.sample_transfer import to_device
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

POINTWISE = (
    "add", "sub", "mul", "true_divide", "floor_divide", "remainder", "fmod", "pow", "atan2", "hypot", "xlogy", "copysign", "maximum",
    "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "clamp_min", "clamp_max", "float_power", "heaviside", "gcd", "lcm",
    "logaddexp", "ldexp",
)  # fmt: skip
PROMOTING: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in POINTWISE},
    "where": lambda x, y: torch.where(x > 1, x, y),
    "clamp": lambda x, y: torch.clamp(x, min=y),
    "rsub": lambda x, y: x - y,
    "rdiv": lambda x, y: x / y,
    "rfloordiv": lambda x, y: x // y,
    "rmod": lambda x, y: x % y,
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=2),
    "addcmul_of_others": lambda x, y: torch.addcmul(x, y, y),
    "addcdiv_of_others": lambda x, y: torch.addcdiv(x, y, y),
    "addcmul_between": lambda x, y: torch.addcmul(y, x, y, value=2),
    "add_alpha": lambda x, y: torch.add(x, y, alpha=2),
    "sub_alpha": lambda x, y: torch.sub(x, y, alpha=2),
    "rsub_alpha": lambda x, y: torch.rsub(x, y, alpha=2),
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "lerp_weight": lambda x, y: torch.lerp(x, x + 1, y),
    "clamp_between": lambda x, y: torch.clamp(x, y, y + 1),
    "trunc_divide": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "masked_fill": lambda x, y: x.masked_fill(x > 1, y),
    "xlog1py": torch.special.xlog1py,
    "isclose": torch.isclose,
    "mse_loss": torch.nn.functional.mse_loss,
    "isin": torch.isin,
    "cat": lambda x, y: torch.cat([x, y]),
    "cat_of_an_empty_tensor": lambda x, y: torch.cat([x, y[:0]]),
    "stack": lambda x, y: torch.stack([x, y]),
}
"""The calls, by name."""


def check_type_promotion(subject: Subject, first: str, second: str) -> None:
    """Compare the results of the calls in ``PROMOTING`` on arguments of two different dtypes with the results on the CPU.

    Differences are recorded in the subject. Calls that the CPU does not support, or that need a dtype that the device
    lacks, are skipped.

    Args:
        subject: The plugin under test, with its device.
        first, second: The names of the two dtypes, such as ``float32``. Each call is made with the dtypes in both orders.
    """
    for name, call in PROMOTING.items():
        for description, given in (*_arguments(first, second), *_arguments(second, first)):
            try:
                expected = call(*given)
            except (RuntimeError, TypeError, AttributeError, IndexError):  # the call does not support these arguments
                continue
            if lacking_dtypes(subject, lambda: (given, call(*given))):  # noqa: B023
                continue
            with subject.sample(f"{name}, {description}", {}):
                there = to_device(given, subject.device)
                with may_be_missing(opdb.operators().get(name), given):
                    found = call(*there)
                check_result(found, expected, None, subject.device)


def _arguments(first: str, second: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield pairs of arguments of these dtypes, each pair with a description. An argument is a 1-d tensor, a 0-d tensor or a Python
    number."""
    x, y = (torch.tensor(values).to(getattr(torch, dtype)) for values, dtype in (([1, 0, 3, 2, 1], first), ([2, 1.5, 1, 3, 1], second)))
    yield f"{first} and {second}", (x, y)
    yield f"{first} and a 0-d tensor of {second}", (x, y[1])
    yield f"{first} and the Python number {y[1].item()}", (x, y[1].item())
    divisors = torch.tensor([1, 4, 3, 2, 1]).to(getattr(torch, first))
    yield f"a 0-d tensor of {second} and {first}", (y[1], divisors)
    yield f"the Python number {y[1].item()} and {first}", (y[1].item(), divisors)
    yield f"a 0-d tensor of {second} and a 0-d tensor of {first}", (y[1], x[2])
    yield f"a 0-d tensor of {second} and the Python number {x[2].item()}", (y[1], x[2].item())
    yield f"the Python number {y[1].item()} and a 0-d tensor of {first}", (y[1].item(), x[2])
