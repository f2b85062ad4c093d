"""Calls that write a result of one dtype into a tensor of another dtype, either in place or with ``out=``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.type_promotion import POINTWISE

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_CONVERSION = "can't be cast"
"""Text in the error that torch raises if a result cannot be converted to the dtype of the written tensor."""


def check_written_dtypes(subject: Subject, first: str, second: str) -> None:
    """Make calls that involve two dtypes and write into a tensor, and compare the written tensors with those on the CPU.

    Each in-place call changes a tensor of one dtype and has an argument of the other dtype. Each call with ``out=`` has arguments of one
    dtype and an output tensor of the other dtype.

    If the CPU raises an error because the result cannot be converted to the dtype of the written tensor, the device must raise one, too.
    Calls that the CPU rejects for another reason are left out. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        first, second: The dtypes. Each of them is the dtype of the written tensor in half of the calls.
    """
    for one, other in ((first, second), (second, first)):
        x, y = (torch.tensor(values).to(getattr(torch, dtype)) for values, dtype in (([1, 0, 3, 2, 1], one), ([2, 1.5, 1, 3, 1], other)))
        for name in POINTWISE:
            method: Callable[..., Any] | None = getattr(torch.Tensor, f"{name}_", None)
            for what, argument in (("a tensor", y), ("a 0-d tensor", y[1].clone()), ("a number", y[1].item())):
                if method is None:
                    continue
                with subject.sample(f"{name}_ of {one} and {what} of {other}", {"name": name}):
                    compare_call(subject, method, (x, argument), is_pure=False, must_raise=_CONVERSION)
            function = getattr(torch, name)
            with subject.sample(f"{name} of {one} with out= of {other}", {"name": name}):
                compare_call(
                    subject,
                    lambda x, out: function(x, x.flip(0) + x, out=out),  # noqa: B023
                    (x, torch.zeros_like(y)),
                    is_pure=False,
                    must_raise=_CONVERSION,
                )
