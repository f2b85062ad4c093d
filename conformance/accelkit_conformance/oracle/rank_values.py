"""Short tensors that depend on the rank, for checks of collectives. This module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


def tensor_of(subject: Subject, *values: float, dtype: str = "float32") -> torch.Tensor:
    """Return a tensor of these values on the subject's device."""
    import torch

    return torch.tensor(values, dtype=getattr(torch, dtype), device=subject.device)


def check_equal(subject: Subject, tensor: torch.Tensor, *expected: float) -> None:
    """Check that a tensor is on the subject's device, and that its elements, flattened, exactly equal the expected numbers.

    Raises:
        AssertionError: If the tensor is on another device, or has other elements.
    """
    subject.assert_on_device(tensor)
    found = [float(value) for value in tensor.flatten().tolist()]
    assert found == [float(value) for value in expected], f"gave {found}, not {list(map(float, expected))}"


def reduced_number(op: str, size: int, start: int) -> float:
    """Return the reduction ``op`` over ``size`` ranks, each of which contributes the number ``start + rank``."""
    values = [start + rank for rank in range(size)]
    product = 1
    for value in values:
        product *= value
    return {"SUM": sum(values), "AVG": sum(values) / size, "MAX": max(values), "MIN": min(values), "PRODUCT": product}[op]
