"""Calls that read or write views of tensors with narrow dtypes, which have one or two bytes per element, and of single elements.

The first element of most views is not aligned to four bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.known_differences import may_be_missing
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.op_compare import flat
from accelkit_conformance.oracle.tolerance import check_form

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

DTYPES = ("bool", "uint8", "int8", "float16", "bfloat16", "int16")
"""The dtypes of the views that all calls take."""
WIDE_DTYPES = ("float32", "float64", "int32", "int64", "complex64")
"""The dtypes of the views that only the calls in ``_OF_ONE_ELEMENT`` take."""
_OFFSETS = (1, 2, 3, 5)
_LENGTHS = (1, 2, 3, 7, 16, 67, 1029)
_MARGIN = 16
_REJECTED = (RuntimeError, NotImplementedError, TypeError, ValueError)


def _numbers(count: int, dtype: torch.dtype, step: int = 5) -> torch.Tensor:
    """Return numbers on the CPU: booleans for bool, integers from 0 to 6 for unsigned dtypes, and integers from -3 to 3 for all others.

    If the integers are from -3 to 3, any seven successive ones add up to 0, so that sums are small, and are exact in each dtype.
    """
    numbers = torch.arange(count) * step % 7
    return numbers % 2 == 0 if dtype is torch.bool else (numbers - 3 * dtype.is_signed).to(dtype)


def _other(view: torch.Tensor) -> torch.Tensor:
    """Return a view of another tensor, with the length, dtype and device of ``view``. It begins at element 3 of that tensor."""
    return _numbers(len(view) + 3, view.dtype, step=3).to(view.device)[3:]


def _mask(view: torch.Tensor) -> torch.Tensor:
    """Return a mask for ``view``. The mask is a view that begins at element 3 of a tensor."""
    return (torch.arange(len(view) + 3) % 3 > 0).to(view.device)[3:]


def _repeated(view: torch.Tensor) -> torch.Tensor:
    """Return as many indices as ``view`` has elements: the index of every third element, three times in succession."""
    return (torch.arange(len(view)) // 3 * 3).to(view.device)


def _distinct(view: torch.Tensor) -> torch.Tensor:
    """Return the indices of every second element of ``view``, in descending order."""
    return torch.arange(0, len(view), 2).flip(0).to(view.device)


def _halves(view: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of ``_distinct``, and a number for each of these indices."""
    index = _distinct(view)
    return index, _other(view)[: len(index)]


def _matrix(view: torch.Tensor) -> torch.Tensor:
    """Return a view of as many rows of 32 elements as ``view`` contains."""
    return view[: len(view) // 32 * 32].view(-1, 32)


CALLS: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "fill_": lambda view: view.fill_(1),
    "zero_": lambda view: view.zero_(),
    "copy_": lambda view: view.copy_(torch.arange(view.numel(), device=view.device).add(1).view(view.shape) % 2),
    "add_": lambda view: view.add_(view),
    "sub_": lambda view: view.sub_(1),
    "mul_": lambda view: view.mul_(2),
    "neg_": lambda view: view.neg_(),
    "clamp_": lambda view: view.clamp_(1, 2),
    "masked_fill_": lambda view: view.masked_fill_(view == view.flatten()[0], 0),
    "index_fill_": lambda view: view.index_fill_(0, torch.arange(0, len(view), 2, device=view.device), 1),
    "logical_not_": lambda view: view.logical_not_(),
    "clone": lambda view: view.clone(),
    "flip": lambda view: view.flip(0),
    "cat": lambda view: torch.cat([view, view[:1]]),
    "index_add_": lambda view: view.index_add_(0, _repeated(view), _other(view)),
    "index_copy_": lambda view: view.index_copy_(0, *_halves(view)),
    "index_put_": lambda view: view.index_put_((_distinct(view),), _halves(view)[1]),
    "index_put_accumulate": lambda view: view.index_put_((_repeated(view),), _other(view), accumulate=True),
    "put_": lambda view: view.put_(*_halves(view)),
    "put_accumulate": lambda view: view.put_(_repeated(view), _other(view), accumulate=True),
    "scatter_": lambda view: view.scatter_(0, *_halves(view)),
    "scatter_number": lambda view: view.scatter_(0, _repeated(view), 1),
    "scatter_add_": lambda view: view.scatter_add_(0, _repeated(view), _other(view)),
    "scatter_reduce_sum": lambda view: view.scatter_reduce_(0, _repeated(view), _other(view), "sum"),
    "scatter_reduce_amax": lambda view: view.scatter_reduce_(0, _repeated(view), _other(view), "amax"),
    "scatter_reduce_amin": lambda view: view.scatter_reduce_(0, _repeated(view), _other(view), "amin", include_self=False),
    "masked_scatter_": lambda view: view.masked_scatter_(_mask(view), _other(view)),
    "logical_and_": lambda view: view.logical_and_(_other(view)),
    "logical_or_": lambda view: view.logical_or_(_other(view)),
    "logical_xor_": lambda view: view.logical_xor_(_other(view)),
    "bitwise_and_": lambda view: view.bitwise_and_(_other(view)),
    "bitwise_or_": lambda view: view.bitwise_or_(_other(view)),
    "bitwise_xor_": lambda view: view.bitwise_xor_(_other(view)),
    "bitwise_not_": lambda view: view.bitwise_not_(),
    "bitwise_left_shift_": lambda view: view.bitwise_left_shift_(1),
    "bitwise_right_shift_": lambda view: view.bitwise_right_shift_(1),
    "cumsum": lambda view: view.cumsum(0),
    "take": lambda view: view.take(_repeated(view)),
    "gather": lambda view: view.gather(0, _repeated(view)),
    "index_select": lambda view: view.index_select(0, _repeated(view)),
    "masked_select": lambda view: view.masked_select(_mask(view)),
    "roll": lambda view: view.roll(1),
    "where": lambda view: torch.where(_mask(view), view, _other(view)),
    "sort": lambda view: view.sort(stable=True),
    "bincount": lambda view: view.abs_().bincount(),
    "mm": lambda view: _matrix(view) @ _matrix(view).t(),
    "bmm": lambda view: _matrix(view)[:, None].transpose(1, 2) @ _matrix(view)[:, None],
}
"""The calls, by name. Each takes a contiguous view with one dimension, and returns a result. Most of the calls write into the view."""
_OF_ONE_ELEMENT = ("fill_", "zero_", "add_", "logical_not_", "copy_", "sub_", "mul_", "neg_", "clamp_", "masked_fill_")
"""The names of calls that also take a view without dimensions."""
_OPERATORS = {
    "scatter_reduce_sum": "scatter_reduce.sum",
    "scatter_reduce_amax": "scatter_reduce.amax",
    "scatter_reduce_amin": "scatter_reduce.amin",
}
"""The names of operators in torch's ``op_db``, by the names of the calls."""


def accepted_calls(dtype: str) -> list[str]:
    """Return the names of the calls that the CPU accepts for views of this dtype."""
    return [name for name in (CALLS if dtype in DTYPES else _OF_ONE_ELEMENT) if _is_accepted(name, getattr(torch, dtype))]


def _is_accepted(name: str, dtype: torch.dtype) -> bool:
    try:
        CALLS[name](_numbers(max(_LENGTHS), dtype))
    except _REJECTED:
        return False
    return True


def check_narrow_views(subject: Subject, dtype: str, name: str) -> None:
    """Check that a call with a view gives the same result as on the CPU, and leaves the elements around the view unchanged.

    A failure is recorded in the subject if a value of the result or of the tensor around the view is wrong.

    Args:
        subject: The plugin under test, with its device.
        dtype: The name of the dtype of the view.
        name: The name of the call in ``CALLS``.

    Raises:
        NotSupported: If the call needs a dtype that the device lacks.
    """
    chosen, call = getattr(torch, dtype), CALLS[name]
    op = opdb.operators().get(_OPERATORS.get(name, name.rstrip("_")))
    require_dtypes(subject, lambda: call(_numbers(7, chosen)))
    for offset in _OFFSETS:
        for length in _LENGTHS:
            whole = _numbers(offset + length + _MARGIN, chosen)
            there = whole.to(subject.device)
            facts = {"name": name, "dtype": dtype, "offset": offset, "length": length}
            what = f"a view that begins at element {offset} and has the length {length}"
            with subject.sample(what, facts):
                expected = flat(call(whole[offset : offset + length]))
                with may_be_missing(op, whole):
                    results = flat(call(there[offset : offset + length]))
                for found, right in zip(results, expected, strict=True):
                    check_form(found, right, subject.device)
                    wrong = int((found.cpu() != right).sum())
                    assert not wrong, f"{wrong} of {right.numel()} elements of the result of {name} are wrong"
                wrong = int((there.cpu() != whole).sum())
                assert not wrong, f"{name} changed {wrong} elements around the view"
        if name in _OF_ONE_ELEMENT:
            for value in (0, 1):
                whole = torch.full((offset + _MARGIN,), 1 - value).to(chosen)
                whole[offset] = value
                there = whole.to(subject.device)
                with subject.sample(f"element {offset}, {value}", {"name": name, "dtype": dtype, "offset": offset, "length": 1}):
                    for one in (whole, there):
                        call(one[offset])
                    assert torch.equal(there.cpu(), whole), f"{name} of the zero-dimensional view of element {offset} is wrong"
