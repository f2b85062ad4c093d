"""Check the form and the values of a device's results. The rule for values is that of ``accelkit.runtime.comparison.tolerance``."""

from __future__ import annotations

import math
from typing import Any

import torch

from accelkit.runtime.comparison.tolerance import difference, relative_error
from accelkit_conformance.oracle.sample_transfer import has_storage
from accelkit_conformance.results import WrongDtype, WrongValues

_GROSS = 0.05
_NEAR = 0.01
_NOISE = 1e-3


def check_result(
    found: Any,
    reference: Any,
    truth: Any,
    device: torch.device,
    *,
    strides: bool = False,
    phase: bool = False,
    cancels: bool = False,
    others: float = 0.0,
    num_terms: int = 1,
    num_stages: int = 1,
    is_sensitive: bool = False,
    is_exact: bool = False,
) -> None:
    """Check one leaf of a device's result.

    Args:
        found: The device's result.
        reference: The CPU's result.
        truth: The CPU's result in double precision, or None.
        device: The device on which the result must be.
        strides: Whether the strides must be equal.
        phase, cancels, others, num_terms, num_stages: The arguments of ``accelkit.runtime.comparison.tolerance.difference``.
        is_sensitive: Whether rounding errors may change the result grossly, as they change the eigenvectors of some matrices.
        is_exact: Whether each element must be equal to the CPU's, or NaN where the CPU's is. A zero may have either sign.

    Raises:
        AssertionError: If the result is wrong. The message says what is wrong, and by how much.
    """
    if not isinstance(reference, torch.Tensor):
        is_same = found == reference or (isinstance(found, float) and math.isnan(found) and math.isnan(reference))
        if isinstance(reference, float) and isinstance(found, float) and not is_same:
            is_same = math.isclose(found, reference, rel_tol=1e-5, abs_tol=1e-7)
        assert is_same, f"gave {found!r}, not {reference!r}"
        return
    check_form(found, reference, device, strides=strides)
    if is_exact:
        check_equal(found.detach().cpu(), reference.detach())
        return
    exact = None if truth is None else truth.detach()
    options = {"phase": phase, "cancels": cancels, "others": others, "num_terms": num_terms, "num_stages": num_stages}
    check_values(found.detach().cpu(), reference.detach(), exact, **options)
    if exact is not None and not is_sensitive:
        check_gross_errors(found.detach().cpu(), reference.detach(), exact)


def check_form(found: Any, reference: torch.Tensor, device: torch.device, *, strides: bool = False) -> None:
    """Check the type, device, dtype, shape and layout of a result and, if ``strides`` is True, its strides.

    The strides of a result without elements or without a storage are not checked.

    Raises:
        WrongDtype: If the dtype is wrong.
        AssertionError: If anything else is wrong.
    """
    assert isinstance(found, torch.Tensor), f"gave {type(found).__name__}, not a tensor"
    assert found.device == device, f"the result is on {found.device}, not on {device}"
    if found.dtype != reference.dtype:
        raise WrongDtype(found.dtype, reference.dtype)
    assert found.shape == reference.shape, f"the result has shape {list(found.shape)}, not {list(reference.shape)}"
    assert found.layout == reference.layout, f"the result is {found.layout}, not {reference.layout}"
    if strides and found.numel() and has_storage(found):  # strides mean nothing without elements, or without a storage
        assert found.stride() == reference.stride(), f"the result has strides {found.stride()}, not {reference.stride()}"


def check_values(found: torch.Tensor, reference: torch.Tensor, truth: torch.Tensor | None, **options: Any) -> None:
    """Check the values of a result. For the arguments, see :func:`check_result`; all given tensors must be on the CPU.

    Raises:
        WrongValues: If a value is wrong. The message says what is wrong, and by how much.
    """
    if wrong := difference(found, reference, truth, **options):
        raise WrongValues(wrong)


def check_equal(found: torch.Tensor, reference: torch.Tensor) -> None:
    """Check that the elements of two tensors on the CPU are equal, or NaN in both.

    Raises:
        WrongValues: If they are not. The message shows the first pair of elements that differ.
    """
    wrong = (found != reference) & ~(found.isnan() & reference.isnan())
    if bool(wrong.any()):
        raise WrongValues(
            f"{int(wrong.sum())} of {wrong.numel()} elements differ: {found[wrong][0].item()!r}, not {reference[wrong][0].item()!r}"
        )


def check_gross_errors(found: torch.Tensor, reference: torch.Tensor, truth: torch.Tensor) -> None:
    """Check a float32 or complex64 result for which the CPU's own error is gross, so that :func:`check_values` accepts any finite values.

    The CPU's result then differs from the truth for a reason other than rounding: the CPU's kernel has a bug, or the result depends on the
    dtype, as that of ``nan_to_num`` does. The device's result must be close to either the CPU's result or the truth.

    Nothing is checked if all elements of the truth are small. They may then be what remains where large numbers cancel.

    Raises:
        WrongValues: If the device's result is close to neither.
    """
    error = relative_error(reference, truth)
    if reference.dtype not in (torch.float32, torch.complex64) or error <= _GROSS:
        return
    if float(truth.abs().max()) < _NOISE or any(_is_near(found, one) for one in (reference, truth)):
        return
    raise WrongValues(
        f"the CPU's results in {reference.dtype} and in {truth.dtype} differ by {error:.2g} of the largest "
        "magnitude, and the device's result is close to neither"
    )


def _is_near(found: torch.Tensor, other: torch.Tensor) -> bool:
    off, size = (found.to(other.dtype) - other).abs().max(), other.abs().max()
    return bool(off <= _NEAR * size)


def check_places(values: torch.Tensor, found: torch.Tensor, reference: torch.Tensor, num_dims: int) -> None:
    """Check that the indices computed on the device and on the CPU refer to equal elements of ``values``. All three tensors are on the CPU.

    Args:
        values: The elements that the indices refer to.
        found: The indices computed on the device. Each is an index into the last ``num_dims`` dimensions of ``values``, flattened to one.
        reference: The indices computed on the CPU, of the same shape.
        num_dims: The number of dimensions to flatten, such as 2 for ``max_pool2d``.

    Raises:
        AssertionError: If an index computed on the device is out of range, or refers to an element that differs from the one at the
            corresponding index computed on the CPU.
    """
    if not found.numel():
        return
    rows = values.flatten(-num_dims)
    assert 0 <= int(found.min()) <= int(found.max()) < rows.shape[-1], "an index is out of range"
    mine, theirs = (rows.gather(-1, one.flatten(-num_dims)) for one in (found, reference))
    assert torch.equal(mine, theirs), f"{int((mine != theirs).sum())} of {found.numel()} indices are those of other values"
