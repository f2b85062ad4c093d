"""Gathering that gradients flow back through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from accelkit.runtime.collectives import meeting, reducing
from accelkit.runtime.collectives.meeting import Channel


def with_gradients(
    channel: Channel, gathered: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], differentiable: Sequence[bool]
) -> list[torch.Tensor]:
    """The gathered tensors, those of ``differentiable`` tied to this process's part.

    The gradient of the part is the sum over processes of what each one's backward pass gives for it. One node of the graph holds all, so
    that every process meets the others once in its backward pass, whatever order autograd takes.
    """
    chosen = [place for place, has in enumerate(differentiable) if has]
    outputs: Any = _Gathered.apply(  # type: ignore[no-untyped-call]
        channel, [gathered[place] for place in chosen], *(tensors[place] for place in chosen)
    )
    result = list(gathered)
    for place, output in zip(chosen, outputs, strict=True):
        result[place] = output
    return result


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, channel: Channel, gathered: list[torch.Tensor], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.channel, ctx.shapes = channel, [tensor.shape for tensor in tensors]
        return tuple(gathered)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        channel: Channel = ctx.channel
        met = meeting.meet(channel, "backward through gather", meeting.outline_of(gradients), differing="")
        with meeting.watching(met.call):
            summed = [reducing.reduce_tensor(channel, gradient, "sum") for gradient in gradients]
        mine = [total.chunk(channel.size)[channel.rank].reshape(shape) for total, shape in zip(summed, ctx.shapes, strict=True)]
        return None, None, *mine
