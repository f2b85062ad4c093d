"""Tensors into which a call writes: the ``out=`` arguments, or the first argument of an in-place call."""

from __future__ import annotations

from typing import Any

import torch

from accelkit_conformance.oracle.layouts import canary, strided_buffer


class Target:
    """A tensor into which a call writes."""

    def __init__(self, tensor: torch.Tensor, buffer: torch.Tensor | None = None) -> None:
        """If ``buffer`` is given, ``tensor`` consists of every second element of ``buffer``."""
        self.tensor, self._buffer = tensor, buffer

    @classmethod
    def strided(cls, like: torch.Tensor) -> Target:
        """Return a Target whose tensor has the values of ``like``, with a canary in the memory between the elements."""
        buffer = strided_buffer(like.detach())
        return cls(buffer[..., 1], buffer)

    def check_gaps(self) -> None:
        """Check that the memory between the elements was not overwritten.

        Raises:
            AssertionError: If it was overwritten.
        """
        if self._buffer is not None and self._buffer.numel():
            between = self._buffer[..., 0].cpu()
            assert bool((between == canary(between.dtype)).all()), "elements between those of a strided tensor were written"


def targets(destination: str, first: Any, results: list[Any], device: torch.device) -> list[Target]:
    """Return the tensors into which a call writes. The list is empty for a call that returns new tensors.

    Args:
        destination: A value of ``condition_rows.AXES["destination"]``.
        first: The first argument of the call, into which an in-place call writes.
        results: The results of the call on the CPU.
        device: The device of the call.
    """
    if destination == "in place":
        return [Target(first)]
    if destination == "strided in place":
        return [Target.strided(first)]
    if "out=" not in destination:
        return []
    make = Target.strided if destination == "strided out=" else Target
    return [make(torch.full(like.shape, canary(like.dtype), dtype=like.dtype, device=device)) for like in results]
