"""Estimate the error of a float64 result by adding rounding errors to the inputs and measuring how much the result changes.

A float64 result cannot be compared with a result in a higher precision, because torch has no wider dtype.

If the inputs are rounded once, the exact result changes. The error of a numerically stable algorithm is about as large as this change (N.
J. Higham, "Accuracy and Stability of Numerical Algorithms", SIAM 2002, sections 1.5 and 1.6). For an ill-conditioned problem, the change is
much larger than eps. Two correct results may then differ by more than 8 eps, the usual tolerance for a gradient in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from accelkit.runtime.comparison.tolerance import relative_error

# The largest change that counts as rounding. Eight times this change is less than the error of a device that computes in float32; a larger
# change comes from a discontinuity of the function.
_LARGEST = 1e-9


def with_rounding_errors(nested: Any) -> Any:
    """Return a copy of nested CPU tensors. In the copy, each element of a strided float64 or complex128 tensor has a relative error of eps.

    The signs of the errors are random, but do not change from call to call. In a complex number, the real and the imaginary part have
    errors of their own.
    """
    generator = torch.Generator().manual_seed(7)

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        copied = leaf.detach().to(leaf.dtype, copy=True)
        if leaf.dtype in (torch.float64, torch.complex128) and leaf.layout is torch.strided:
            copied = copied.resolve_conj().resolve_neg()
            parts = torch.view_as_real(copied) if copied.is_complex() else copied
            signs = torch.randint(0, 2, parts.shape, generator=generator, dtype=torch.float64) * 2 - 1
            parts *= 1 + signs * torch.finfo(torch.float64).eps
        return copied.requires_grad_(leaf.requires_grad)

    return tree_map(change, nested)


def differ_by_rounding(changed: torch.Tensor, result: torch.Tensor) -> bool:
    """Return whether two float64 or complex128 results from the CPU differ, but only by rounding errors.

    A larger difference comes from a discontinuity of the function.

    Args:
        changed: The result for inputs with rounding errors.
        result: The result for the inputs as they are.
    """
    return 0.0 < relative_error(changed, result) <= _LARGEST
