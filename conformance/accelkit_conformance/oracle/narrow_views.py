"""Calls that read or write views of tensors with narrow dtypes, which have one or two bytes per element.

The first element of most views is not aligned to four bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_OFFSETS = (1, 2, 3, 5)
_LENGTHS = (1, 2, 3, 7, 16, 67, 1029)
_MARGIN = 16

CALLS: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "fill_": lambda view: view.fill_(1),
    "zero_": lambda view: view.zero_(),
    "copy_": lambda view: view.copy_(torch.arange(len(view), device=view.device) % 2),
    "add_": lambda view: view.add_(view),
    "masked_fill_": lambda view: view.masked_fill_(view == view[0], 0),
    "index_fill_": lambda view: view.index_fill_(0, torch.arange(0, len(view), 2, device=view.device), 1),
    "logical_not_": lambda view: view.logical_not_(),
    "clone": lambda view: view.clone(),
    "flip": lambda view: view.flip(0),
    "cat": lambda view: torch.cat([view, view[:1]]),
}
"""The calls, by name. Each takes a contiguous view with one dimension. Calls with ``_`` write into the view, the others return a result."""
_OF_ONE_ELEMENT = ("fill_", "zero_", "add_", "logical_not_")
"""The names of calls that also take a view without dimensions."""


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
    subject.needs(*{"index_fill_": ("int64",), "copy_": ("int64",), "masked_fill_": ("bool",)}.get(name, ()))
    for offset in _OFFSETS:
        for length in _LENGTHS:
            whole = ((torch.arange(offset + length + _MARGIN) * 5 % 3) < 2).to(getattr(torch, dtype))
            there = whole.to(subject.device)
            facts = {"name": name, "dtype": dtype, "offset": offset, "length": length}
            with subject.sample(f"{length} elements from element {offset} on", facts):
                expected, found = (CALLS[name](one[offset : offset + length]) for one in (whole, there))
                assert torch.equal(found.cpu(), expected), f"{name} of {length} elements of {dtype} from element {offset} on is wrong"
                assert torch.equal(there.cpu(), whole), f"{name} from element {offset} on changed the elements around the view"
        if name in _OF_ONE_ELEMENT:
            for value in (0, 1):
                whole = torch.full((offset + _MARGIN,), 1 - value).to(getattr(torch, dtype))
                whole[offset] = value
                there = whole.to(subject.device)
                with subject.sample(f"element {offset}, {value}", {"name": name, "dtype": dtype, "offset": offset, "length": 1}):
                    for one in (whole, there):
                        CALLS[name](one[offset])
                    assert torch.equal(there.cpu(), whole), f"{name} of the zero-dimensional view of element {offset} is wrong"
