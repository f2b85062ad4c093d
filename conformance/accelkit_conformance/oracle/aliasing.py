"""Check that the results of a call share memory with its arguments as they do on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from accelkit_conformance.oracle.sample_transfer import has_memory, tensors


def check_aliasing(found: Iterable[Any], reference: Iterable[Any], there: Any, here: Any) -> None:
    """Check that the results of a call on the device share memory with its arguments as they do on the CPU.

    A result that shares no memory with the arguments on the CPU must not share memory with them on the device. A result that is a view of
    an argument on the CPU must also share memory with an argument on the device, and must start at the same offset. If a result on the CPU
    is an argument itself, the result on the device may be a copy. Results that are sparse, have no elements or have no address are left
    out.

    Args:
        found: The results on the device.
        reference: The results on the CPU.
        there: The arguments of the call on the device.
        here: The arguments of the call on the CPU.

    Raises:
        AssertionError: If a result shares memory where it must not, is a copy instead of a view, or starts at the wrong offset.
    """
    mine, theirs = _addresses(tensors(there)), _addresses(tensors(here))
    for one, other in zip(found, reference, strict=True):
        if not _has_address(one) or not _has_address(other):
            continue
        is_alias, is_expected = _address(one) in mine, _address(other) in theirs
        assert is_expected or not is_alias, "the result shares memory with an argument"
        if is_expected and other._is_view():
            assert is_alias, "the result is a copy, not a view of an argument"
            assert one.storage_offset() == other.storage_offset(), (
                f"the view starts at element {one.storage_offset()} of its storage, not at {other.storage_offset()}"
            )


def _addresses(given: Sequence[torch.Tensor]) -> set[int]:
    return {_address(one) for one in given if _has_address(one)}


def _has_address(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.layout is torch.strided and one.numel() > 0 and has_memory(one)


def _address(one: torch.Tensor) -> int:
    return one.untyped_storage().data_ptr()
