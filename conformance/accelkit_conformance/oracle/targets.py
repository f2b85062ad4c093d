"""Tensors into which a call writes: the ``out=`` arguments, or the first argument of an in-place call."""

from __future__ import annotations

from typing import Any

import torch

from accelkit_conformance.oracle.layouts import canary, narrowed_buffer, reversed_dimensions, strided_buffer
from accelkit_conformance.oracle.sample_transfer import has_memory
from accelkit_conformance.oracle.used_memory import unwritten


class Target:
    """A tensor into which a call writes."""

    def __init__(self, tensor: torch.Tensor, *between: torch.Tensor) -> None:
        """Create a Target for ``tensor``.

        Args:
            tensor: The tensor into which a call writes.
            between: Views of other elements in the same storage. These elements contain a canary, which the call must not overwrite.
        """
        self.tensor, self._between = tensor, between
        self._place = _place(tensor)

    @classmethod
    def strided(cls, like: torch.Tensor) -> Target:
        """Return a Target whose tensor has the values of ``like``. The memory between the elements contains a canary, which a call must not
        overwrite."""
        buffer = strided_buffer(like.detach())
        return cls(buffer[..., 1], buffer[..., 0])

    @classmethod
    def narrowed(cls, like: torch.Tensor) -> Target:
        """Return a Target whose tensor has the values of ``like``. The memory between the rows contains a canary, which a call must not
        overwrite."""
        buffer, inside = narrowed_buffer(like.detach())
        return cls(inside, buffer[..., :2], buffer[..., -3:])

    @classmethod
    def permuted(cls, like: torch.Tensor) -> Target:
        """Return a Target whose tensor has the values of ``like``, with its dimensions in the opposite order in memory."""
        return cls(reversed_dimensions(like.detach().clone(memory_format=torch.contiguous_format)))

    def check_gaps(self) -> None:
        """Check that a call did not move the tensor, change its strides, or overwrite the memory between its elements.

        Raises:
            AssertionError: If the tensor was moved in memory, if its strides were changed, or if the memory between its elements was
                overwritten.
        """
        if self._place is not None and self.tensor.numel():
            assert _place(self.tensor) == self._place, "after the call, the given tensor has another place in memory or other strides"
        for view in self._between:
            between = view.cpu()
            assert bool((between == canary(between.dtype)).all()), "memory between the elements or rows of the given tensor was overwritten"


def _place(tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]] | None:
    """Return the address of the tensor's storage, the tensor's storage offset and its strides.

    Return None if the tensor is not strided, or if its storage has no address.
    """
    if tensor.layout is not torch.strided or not has_memory(tensor):
        return None
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), tensor.stride()


_IN_PLACE = {"strided in place": Target.strided, "narrowed in place": Target.narrowed, "permuted in place": Target.permuted}
_OUT = {"strided out=": Target.strided, "narrowed out=": Target.narrowed, "permuted out=": Target.permuted}


def targets(destination: str, first: Any, results: list[Any], device: torch.device) -> list[Target]:
    """Return the tensors into which a call writes. The list is empty for a call that returns new tensors.

    Args:
        destination: A value of ``condition_rows.AXES["destination"]``, or a key of ``_IN_PLACE`` or ``_OUT``.
        first: The first argument of the call, into which an in-place call writes.
        results: The results of the call on the CPU.
        device: The device of the call.
    """
    if destination == "in place":
        return [Target(first)]
    if destination in _IN_PLACE:
        return [_IN_PLACE[destination](first)]
    if "out=" not in destination:
        return []
    make = _OUT.get(destination, Target)
    return [make(torch.full(like.shape, unwritten(like.dtype), dtype=like.dtype, device=device)) for like in results]
