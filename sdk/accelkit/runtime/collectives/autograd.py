"""Differentiable gather."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from accelkit.runtime.collectives import fingerprint, reduction
from accelkit.runtime.collectives.communicator import Communicator


def with_gradients(
    communicator: Communicator, gathered: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], differentiable: Sequence[bool]
) -> list[torch.Tensor]:
    """Return the gathered tensors. Those marked in ``differentiable`` are connected to this process's tensors in autograd's graph.

    The gradient of each of this process's tensors is the sum of the gradients that the backward passes of all processes compute for it.
    The marked gathered tensors are all outputs of one node of the graph, so that every process reduces their gradients in the same order,
    regardless of the order in which autograd visits nodes.
    """
    chosen = [place for place, has in enumerate(differentiable) if has]
    outputs: Any = _Gathered.apply(  # type: ignore[no-untyped-call]
        communicator, [gathered[place] for place in chosen], *(tensors[place] for place in chosen)
    )
    result = list(gathered)
    for place, output in zip(chosen, outputs, strict=True):
        result[place] = output
    return result


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, communicator: Communicator, gathered: list[torch.Tensor], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.communicator, ctx.shapes = communicator, [tensor.shape for tensor in tensors]
        return tuple(gathered)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        communicator: Communicator = ctx.communicator
        verified = fingerprint.verify(
            communicator, "backward through gather", fingerprint.outline_of(gradients), differing="", is_optional=True
        )
        with fingerprint.watching(verified.call):
            summed = [reduction.reduce_tensor(communicator, gradient, "sum") for gradient in gradients]
        mine = [total.chunk(communicator.size)[communicator.rank].reshape(shape) for total, shape in zip(summed, ctx.shapes, strict=True)]
        return None, None, *mine
