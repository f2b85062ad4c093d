"""Comparison of results that are computed in one dtype and then converted to another."""

from __future__ import annotations

import torch

from accelkit.runtime.comparison.tolerance import C, as_reals
from accelkit_conformance.results import WrongValues

_AT_LIMIT = 0.02
"""The relative distance from the largest number of a dtype within which rounding may decide whether a result overflows."""


def real_parts(converted: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Return the real parts of ``converted`` if it is complex and ``own`` is real. Otherwise, return ``converted`` itself.

    ``own`` is the result before the conversion.

    Raises:
        AssertionError: If an imaginary part is not 0.
    """
    if not converted.is_complex() or own.is_complex():
        return converted
    parts = torch.view_as_real(converted)
    assert not bool(parts[..., 1].any()), "the imaginary parts of converted real numbers are not 0"
    return parts[..., 0]


def check_converted(found: torch.Tensor, reference: torch.Tensor, own: torch.Tensor, truth: torch.Tensor) -> None:
    """Check a result that was computed in its own dtype and then converted. All tensors are on the CPU.

    The result must agree with the CPU's. If the CPU computes in the dtype to which the result is converted, as it does for ``cumsum``, the
    result may also agree with the converted result ``own``.

    Integers must be equal. The permitted error of a floating-point number is the sum of two errors that the suite's rule permits (see
    ``accelkit.runtime.comparison.tolerance``): one for the whole result in its own dtype, and one for this single element in the dtype to
    which the result is converted. The smallest normal number of the latter dtype is added to this sum. Elements are judged one by one,
    because the result may contain numbers of very different size.

    A number that overflows in one of the dtypes must be infinite, even if the other dtype can represent it.

    Args:
        found: The device's result.
        reference: The CPU's result.
        own: The CPU's result before it is converted.
        truth: The CPU's result in double precision.

    Raises:
        WrongValues: If a value is wrong.
        AssertionError: If the conversion of a real number to a complex dtype gave an imaginary part other than 0.
    """
    found, reference, converted = (real_parts(one, own) for one in (found, reference, own.to(found.dtype)))
    x, n, t = (as_reals(one) for one in (found, own, truth))
    is_right = torch.zeros_like(x, dtype=torch.bool)
    for c in (as_reals(reference), as_reals(converted)):
        is_right |= x == c
        if found.is_floating_point():
            is_right |= _is_close(x, c, t, torch.finfo(found.dtype), _permitted(n, t, own)) | (x.isnan() & (c.isnan() | t.isnan()))
    if found.is_floating_point():
        for limit in (torch.finfo(one.dtype).max for one in (found, own) if one.is_floating_point()):
            may_overflow = (t.abs() > (1 - _AT_LIMIT) * limit) & (t.abs() < (1 + _AT_LIMIT) * limit)
            is_right |= may_overflow & (x.abs() > (1 - 2 * _AT_LIMIT) * limit) & (x.sign() == t.sign())
    if wrong := int((~is_right).sum()):
        first, c = int((~is_right).int().argmax()), as_reals(reference)
        raise WrongValues(f"{wrong} of {x.numel()} elements are wrong (first at {first}: {x[first]:.9g}, expected {c[first]:.9g})")


def _permitted(own: torch.Tensor, truth: torch.Tensor, like: torch.Tensor) -> float:
    """Return the absolute error that the suite's rule permits for a result in the dtype of ``like``. It is 0 for integers."""
    is_finite = torch.isfinite(own) & torch.isfinite(truth)
    if not like.is_floating_point() or not bool(is_finite.any()):
        return 0.0
    return C * max(float((own - truth).abs()[is_finite].max()), torch.finfo(like.dtype).eps * float(truth.abs()[is_finite].max()))


def _is_close(found: torch.Tensor, reference: torch.Tensor, truth: torch.Tensor, dtype: torch.finfo, permitted: float) -> torch.Tensor:
    """Return a mask of the elements that are finite in ``found`` and ``reference``, and whose errors are small enough.

    An error may be as large as the sum of ``permitted``, the error that the suite's rule permits for the element in ``dtype``, and the
    smallest normal number of ``dtype``.
    """
    allowed = permitted + C * torch.maximum((reference - truth).abs(), dtype.eps * truth.abs()) + dtype.tiny
    return torch.isfinite(found) & torch.isfinite(reference) & ((found - truth).abs() <= allowed)
