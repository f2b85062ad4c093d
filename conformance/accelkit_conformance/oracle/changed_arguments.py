"""Check that a call does not change arguments that it should leave alone, or the memory around them."""

from __future__ import annotations

from typing import Any

import torch

from accelkit_conformance.oracle.sample_transfer import has_memory, tensors


def check_inputs(there: Any, here: Any, given: Any) -> None:
    """Check that a call on the device does not change an argument that the same call on the CPU leaves unchanged.

    The memory around such an argument must not change either. On a device whose tensors have no data pointer, such as XLA, only the values
    of the arguments are compared, not the memory around them. Arguments that are not strided, or whose storage has a different size on
    the device, are not checked.

    Args:
        there: The arguments of the call on the device, after the call.
        here: The arguments of the call on the CPU, after the call.
        given: The arguments before the calls, on the CPU.

    Raises:
        AssertionError: If the call on the device has changed such an argument, or the memory around it.
    """
    for mine, theirs, original in zip(tensors(there), tensors(here), tensors(given), strict=True):
        if original.layout is torch.strided and not has_memory(mine):
            if _are_equal(theirs, original):
                assert _are_equal(mine, original), "the call changed an argument"
        elif (
            original.layout is torch.strided
            and original.untyped_storage().nbytes() == mine.untyped_storage().nbytes()
            and _has_equal_storage(theirs, original)
        ):
            assert _has_equal_storage(mine, original), "the call changed an argument, or the memory around it"


def _has_equal_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether the storages of two tensors are equal, as ``_are_equal`` compares them."""
    first, second = whole_storage(one), whole_storage(other)
    return torch.equal(first, second) or _are_equal(first.view(one.dtype), second.view(other.dtype))


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bits. Two NaNs count as equal even if their bits differ.

    An operator that updates an argument, as ``batch_norm_update_stats`` does, may replace a NaN with a NaN that has different bits.
    """
    if one.dtype != other.dtype or one.shape != other.shape or one.is_quantized:
        return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    first, second = (tensor.detach().cpu().resolve_conj().resolve_neg().flatten() for tensor in (one, other))
    if first.is_complex():
        first, second = torch.view_as_real(first), torch.view_as_real(second)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    is_equal = first.view(bits) == second.view(bits)
    if first.is_floating_point() and not bool(is_equal.all()):
        is_equal |= first.double().isnan() & second.double().isnan()  # 8-bit numbers have no isnan
    return bool(is_equal.all())


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the tensor's storage as a flat uint8 tensor on the CPU, with lazy conjugation and negation resolved."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0).cpu().resolve_conj().resolve_neg().contiguous().view(torch.uint8)
