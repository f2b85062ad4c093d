"""Operations on the storage, shape and strides of a tensor, and writes through views."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _numbers(device: Any) -> torch.Tensor:
    return torch.arange(12.0).to(device)


def _grown(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """Resize a tensor of twelve elements to a larger shape, and return a copy of its first twelve elements."""
    return x.resize_(*shape).view(-1)[:12].clone()


def _resized_view(device: Any) -> Any:
    x = _numbers(device)
    view = x[4:8]
    view.resize_(2, 4)
    return view, x, view.storage_offset()


def _set_to_another(device: Any) -> Any:
    x, y = _numbers(device), torch.zeros(3, device=device)
    y.set_(x.untyped_storage(), 2, (2, 3), (4, 1))  # type: ignore[call-overload]
    y.add_(100)
    return x, y, y.stride(), y.storage_offset()


def _strided_in_place(device: Any) -> Any:
    x = _numbers(device)
    view = x.view(3, 4)
    view.as_strided_((2, 2), (4, 2), 1)
    view.mul_(-1)
    return x, view, view.stride()


def _assigned_data(device: Any) -> Any:
    x, y = _numbers(device), torch.zeros(2, 3, device=device)
    y.data = x.view(3, 4).t()
    y.data[0] = 50
    z = torch.zeros(10, device=device)
    view = z.view(2, 5)
    z.data = z.data + 1  # the view keeps the old storage
    kept = view.clone()
    view.add_(5)
    return x, y, y.stride(), z, kept, view


def _transposed_in_place(device: Any) -> Any:
    x = _numbers(device).view(3, 4)
    x.t_()
    first = x.clone(), x.stride(), x.shape
    x.unsqueeze_(1).transpose_(0, 2).swapaxes_(0, 1).squeeze_(0)
    return *first, x, x.stride(), x.shape


def _bytes(device: Any) -> Any:
    x = _numbers(device)
    wide = x.view(torch.int64)
    narrow = x[2:6].view(torch.int16)
    narrow[::2] = 0
    return x.view(torch.int32), wide, narrow, x.view(3, 4).view(torch.uint8), x[2:].view(2, 5)[:, 1:].view(torch.int32)


def _bools_of_bytes(device: Any) -> Any:
    """Use bools that are stored as bytes other than 0 and 1. Each byte other than 0 stands for True."""
    mask = torch.tensor([0, 1, 2, 128, 255] * 7, dtype=torch.uint8).to(device).view(torch.bool)
    numbers, other = torch.arange(35).to(device), mask.flip(0)
    results = [
        mask & other, mask | other, mask ^ other, ~mask, mask == other, mask != other, mask & True, mask == True, mask.logical_and(other),  # noqa: E712
        mask.any(), mask.view(7, 5).all(1), mask.unique(), mask.max(),
    ]  # fmt: skip
    return (
        mask.float(), mask.int(), mask.to(torch.uint8), mask + 1.5, mask * 3, mask.sum(), mask.cumsum(0), mask.count_nonzero(),
        numbers.masked_fill(mask, -1), torch.where(mask, numbers, -numbers),
        torch.zeros(35, device=device).copy_(mask),
        torch.cat([mask, other]).int(), mask.clone().float(), mask.tolist(), [one.to(torch.uint8) for one in results],
    )  # fmt: skip


def _complex_parts(device: Any) -> Any:
    x = torch.view_as_complex(_numbers(device).view(6, 2))
    x.real[1] = 70
    x.imag.mul_(-1)
    torch.view_as_real(x)[5] = 9
    x.conj().imag[0] = 33
    return x, x.conj(), x.conj().imag, x.conj().real


def _windows(device: Any) -> Any:
    x = _numbers(device)
    windows = x.unfold(0, 4, 2)
    parts = x.view(3, 4).unbind(1)
    parts[2].fill_(-1)
    chunks = x.tensor_split([3, 7])
    chunks[1][0] = 40
    x.view(3, 4).diagonal(1).add_(500)
    x.view(2, 6).narrow(1, 2, 3).select(0, 1).zero_()
    x.view(3, 4).movedim(0, 1)[3].mul_(2)
    return x, windows, parts, chunks, windows.stride()


def _nested_views(device: Any) -> Any:
    x = torch.arange(60.0).to(device)
    one = x.view(3, 4, 5)[1:, ::2].transpose(0, 2)[1:4][:, 1]
    other = x[7:].view(-1)[3::5][1][None]
    one.add_(1000)
    other.fill_(-5)
    return x, one, other, one.stride(), one.storage_offset(), other.storage_offset()


def _swapped(device: Any) -> Any:
    x, y = _numbers(device), torch.zeros(2, device=device)
    x[2:5], y = x[4:7].clone(), x[2:4]
    x[0], x[1] = x[1].clone(), x[0].clone()
    return x, y


def _with_earlier_views(change: Callable[[torch.Tensor], object]) -> Callable[[Any], Any]:
    """Return a function that takes a device, creates a tensor and views of it, calls ``change`` with the tensor, and then writes into each
    of them."""

    def call(device: Any) -> Any:
        x = _numbers(device)
        views = [x.view(3, 4), x[2:], x.detach(), x.view(3, 4).t(), x[:5]]
        change(x)
        kept = [one.clone() for one in (x, *views)]
        views[1][3] = 70
        x[1] = -1
        views[3][0].mul_(3)
        views[2][4] = 9
        return kept, x, views, x.stride(), x.storage_offset()

    return call


def _assign(x: torch.Tensor, values: torch.Tensor) -> None:
    x.data = values


STORAGES: dict[str, Callable[[Any], Any]] = {
    "resize__to_a_smaller_shape": lambda device: _numbers(device).resize_(2, 3),
    "resize__to_a_larger_shape": lambda device: _grown(_numbers(device), 5, 7),
    "resize__of_a_strided_tensor": lambda device: _numbers(device).view(3, 4).t().resize_(2, 6),
    "resize__there_and_back": lambda device: _numbers(device).resize_(3).resize_(12),
    "resize__to_nothing_and_back": lambda device: _numbers(device).resize_(0, 4).resize_(3, 4),
    "resize__of_a_view": _resized_view,
    "resize_as_": lambda device: _numbers(device).resize_as_(torch.ones(2, 3, device=device)),
    "set_": _set_to_another,
    "as_strided_": _strided_in_place,
    "data": _assigned_data,
    "t__and_others": _transposed_in_place,
    "view_as_another_dtype": _bytes,
    "bools_of_bytes": _bools_of_bytes,
    "real_and_imaginary_parts": _complex_parts,
    "parts": _windows,
    "views_of_views": _nested_views,
    "swapped_parts": _swapped,
    "data_after_views": _with_earlier_views(lambda x: _assign(x, x[:5] + 1)),
    "data_of_a_view_after_views": _with_earlier_views(lambda x: _assign(x, x.data[3:9])),
    "set__after_views": _with_earlier_views(lambda x: x.set_(torch.arange(20.0).to(x.device)[3:9].view(2, 3).view(6))),
    "resize__after_views": _with_earlier_views(lambda x: x.resize_(5)),
}
"""Functions by name. Each takes a device and returns tensors and numbers."""


def check_storages(subject: Subject, name: str) -> None:
    """Compare the results of ``STORAGES[name]`` on the device with those on the CPU. Differences are recorded in the subject.

    Does nothing if the device lacks a dtype that ``STORAGES[name]`` needs.
    """
    function, cpu = STORAGES[name], torch.device("cpu")
    if lacking_dtypes(subject, lambda: function(cpu)):
        return
    with subject.sample(name, {"name": name}):
        found, expected = torch.utils._pytree.tree_leaves(function(subject.device)), torch.utils._pytree.tree_leaves(function(cpu))
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            check_result(mine, theirs, None, subject.device)
