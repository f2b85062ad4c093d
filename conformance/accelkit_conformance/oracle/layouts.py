"""Memory layouts: copies of a tensor with the same values and a different arrangement in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from accelkit_conformance.oracle.sample_transfer import tensors

GUARD = 17
"""The number of other elements before and after an ``offset`` copy. It is odd, so that the copy is not aligned for vector loads."""


def canary(dtype: torch.dtype) -> float:
    """Return the value that fills the part of a buffer outside the tensor stored in it.

    The value shows whether a call has read or written outside the tensor.
    """
    return 1 if dtype is torch.bool else -7.25 if dtype.is_floating_point or dtype.is_complex else 77


def strided_buffer(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with an additional last dimension of length 2. Index 1 holds the values of ``tensor``, and index 0 holds the result
    of ``canary``."""
    buffer = torch.full((*tensor.shape, 2), canary(tensor.dtype), dtype=tensor.dtype, device=tensor.device)
    buffer[..., 1] = tensor
    return buffer


def strided(one: torch.Tensor) -> torch.Tensor:
    """Return a copy whose elements are every second element of a buffer, with other values in between."""
    return strided_buffer(one)[..., 1]


def narrowed_buffer(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a buffer that holds the values of ``tensor``, and a view of the part of the buffer that holds them.

    The last dimension of the buffer has five more elements than the last dimension of ``tensor``. The other elements of the buffer hold the
    result of ``canary``. A 0-d tensor is treated as one row with one element.
    """
    shape = tensor.shape or (1,)
    buffer = torch.full((*shape[:-1], shape[-1] + 5), canary(tensor.dtype), dtype=tensor.dtype, device=tensor.device)
    inside = buffer[..., 2:-3].view(tensor.shape) if not tensor.ndim else buffer[..., 2:-3]
    inside.copy_(tensor)
    return buffer, inside


def narrowed(one: torch.Tensor) -> torch.Tensor:
    """Return a copy in which each row is contiguous, with other values in memory before and after the row."""
    return narrowed_buffer(one)[1]


def reversed_dimensions(one: torch.Tensor) -> torch.Tensor:
    """Return the tensor with its dimensions in the opposite order in memory. It is copied only if the order in memory changes."""
    order = tuple(range(one.ndim))[::-1]
    return one.permute(order).contiguous().permute(order)


def indexed(one: torch.Tensor) -> torch.Tensor:
    """Return a copy that was taken out of a buffer by indexing twice.

    The buffer has one more dimension in front, and two more elements in the next one. A device that rebuilds views from the sizes of their
    base must handle a base with another number of dimensions. A 0-d tensor is one element of a buffer of three.
    """
    if not one.ndim:
        return one.repeat(3)[1]
    buffer = torch.full((3, one.shape[0] + 2, *one.shape[1:]), canary(one.dtype), dtype=one.dtype, device=one.device)
    inside = buffer[1][1:-1]
    inside.copy_(one)
    return inside


def odd_strides(one: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy with unusual strides in its dimensions of length 1, where strides have no effect. The stride is 1 in even
    dimensions (0, 2, ...) and 1009 in odd dimensions."""
    copy = one.clone(memory_format=torch.contiguous_format)
    strides = [(1, 1009)[dim % 2] if copy.shape[dim] == 1 else copy.stride(dim) for dim in range(copy.ndim)]
    return copy.as_strided(copy.shape, strides)


def ambiguous_strides(one: torch.Tensor) -> torch.Tensor:
    """Return a copy with dimension 1 last in memory, and with stride 1 in all dimensions of length 1, where strides have no effect.

    If the tensor has dimensions of length 1, its strides fit several memory formats: it is contiguous in channels_last, but torch does not
    recognize this format from its strides. A tensor with fewer than two dimensions is only copied.
    """
    copy = one.movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1) if one.ndim > 1 else one.clone()
    return copy.as_strided(copy.shape, [1 if length == 1 else step for length, step in zip(copy.shape, copy.stride(), strict=True)])


def offset(one: torch.Tensor) -> torch.Tensor:
    """Return a copy whose storage also holds other values, before and after those of the copy."""
    buffer = torch.full((one.numel() + 2 * GUARD,), canary(one.dtype), dtype=one.dtype, device=one.device)
    buffer[GUARD : GUARD + one.numel()] = one.reshape(-1)
    return buffer[GUARD : GUARD + one.numel()].view(one.shape)


def transposed(one: torch.Tensor) -> torch.Tensor:
    """Return a copy whose last two dimensions are swapped in memory.

    If the tensor has fewer than two dimensions, return an ordinary copy.
    """
    return one.transpose(-1, -2).contiguous().transpose(-1, -2) if one.ndim > 1 else one.clone()


def channels_last(one: torch.Tensor) -> torch.Tensor:
    """Return a copy of a four- or five-dimensional tensor with its channels last in memory.

    For any other tensor, the result is that of ``transposed``.
    """
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(one.ndim)
    if memory_format is None:
        return transposed(one)
    return torch.empty_like(one, memory_format=memory_format).copy_(one)  # contiguous() keeps the strides of a tensor with one channel


def channels_last_offset(one: torch.Tensor) -> torch.Tensor:
    """Return a copy of a four- or five-dimensional tensor with its channels last in memory, in a storage that also holds other values.

    Like a copy that ``offset`` returns, this copy is not aligned for vector loads. For any other tensor, the result is that of ``offset``.
    """
    return offset(one.movedim(1, -1)).movedim(-1, 1) if one.ndim in (4, 5) else offset(one)


def channels_last_slice(one: torch.Tensor) -> torch.Tensor:
    """Return a copy of a four- or five-dimensional tensor that consists of some channels of a larger tensor with its channels last in
    memory. For any other tensor, the result is that of ``strided``."""
    return narrowed(one.movedim(1, -1)).movedim(-1, 1) if one.ndim in (4, 5) else strided(one)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "strided": strided,
    "offset": offset,
    "transposed": transposed,
    "channels_last": channels_last,
}
"""The layouts that are combined with all other conditions."""

MORE_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "narrowed": narrowed,
    "indexed": indexed,
    "reversed": reversed_dimensions,
    "odd strides": odd_strides,
    "ambiguous strides": ambiguous_strides,
    "channels_last offset": channels_last_offset,
    "channels_last slice": channels_last_slice,
}
"""Further layouts, which are combined with few other conditions."""

MIXED_LAYOUTS = ("first channels_last", "others channels_last")
"""Layouts of several tensors: either the first tensor or all others are in channels_last, and the remaining tensors are contiguous."""
NARROWED_LAYOUTS = ("first narrowed", "others narrowed")
"""Layouts of several tensors, like ``MIXED_LAYOUTS``, but with the layout ``narrowed`` instead of channels_last."""


def arranged(one: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor with the values of ``one`` in the given memory layout, or ``one`` itself.

    ``layout`` is a key of ``LAYOUTS`` or ``MORE_LAYOUTS``, or ``contiguous``. The tensor itself is returned if ``layout`` is
    ``contiguous``, or if the tensor is not strided or has no elements.
    """
    return one if layout == "contiguous" or not one.numel() or one.layout is not torch.strided else (LAYOUTS | MORE_LAYOUTS)[layout](one)


def all_arranged(nested: Any, layout: str) -> Any:
    """Return a copy of nested data in which each tensor is replaced by the result of ``arranged``.

    ``layout`` is a name that ``arranged`` accepts, or a name in ``MIXED_LAYOUTS`` or ``NARROWED_LAYOUTS``. With a name in ``MIXED_LAYOUTS``
    or ``NARROWED_LAYOUTS``, the layout of the first tensor differs from the layout of the other tensors.
    """
    first = next(iter(tensors(nested)), None)

    def change(one: torch.Tensor) -> torch.Tensor:
        if layout not in (*MIXED_LAYOUTS, *NARROWED_LAYOUTS):
            return arranged(one, layout)
        which, _, name = layout.partition(" ")
        return arranged(one, name if (one is first) == (which == "first") else "contiguous")

    return tree_map_only(torch.Tensor, change, nested)


PRESERVING: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "clone": lambda x, dtype: x.clone(),
    "to": lambda x, dtype: x.to(dtype, copy=True),
    "empty_like": lambda x, dtype: torch.empty_like(x, dtype=dtype),
    "zeros_like": lambda x, dtype: torch.zeros_like(x, dtype=dtype),
    "ones_like": lambda x, dtype: torch.ones_like(x, dtype=dtype),
    "full_like": lambda x, dtype: torch.full_like(x, 2, dtype=dtype),
    "rand_like": lambda x, dtype: torch.rand_like(x, dtype=dtype),
    "randn_like": lambda x, dtype: torch.randn_like(x, dtype=dtype),
}
"""Calls, by name, whose argument ``memory_format`` is ``torch.preserve_format`` by default. Each takes a tensor and the dtype of the
result."""


def permuted_tensors(dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors that are dense in memory but not contiguous, each with the name of its layout."""
    numbers = torch.arange(120).to(dtype)
    yield "transposed", numbers.view(10, 12).t()
    yield "permuted", numbers.view(4, 5, 6).permute(2, 0, 1)
    yield "channels_last", channels_last(numbers.view(2, 3, 4, 5))
    yield "channels_last_3d", channels_last(numbers.view(1, 2, 3, 4, 5))
