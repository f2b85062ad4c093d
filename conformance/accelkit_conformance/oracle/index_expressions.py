"""Comparison of the results on the device with those on the CPU, for reads and assignments with an index, such as ``x[1:, indices]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.layouts import arranged

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _ints(device: torch.device, *values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu").to(device)


def _mask(device: torch.device, *values: Any) -> torch.Tensor:
    return torch.tensor([bool(value) for value in values]).to(device)


_Index = Callable[[torch.Tensor], Any]
INDICES: dict[str, _Index] = {
    "number": lambda x: 1,
    "negative_number": lambda x: -1,
    "slice": lambda x: slice(1, 3),
    "step": lambda x: (slice(None), slice(None, None, 2)),
    "offset_and_step": lambda x: (slice(1, None), slice(1, None, 3), slice(2)),
    "column": lambda x: (slice(None), 1),
    "last_dimension": lambda x: (..., -2),
    "new_dimensions": lambda x: (None, slice(1, None), None, 2),
    "ellipsis": lambda x: (0, ..., slice(1, None)),
    "indices": lambda x: _ints(x.device, 3, 0, -1, 0, 2),
    "no_indices": lambda x: _ints(x.device),
    "one_index": lambda x: _ints(x.device, 2),
    "zero_dimensional_index": lambda x: torch.tensor(2).to(x.device),
    "list": lambda x: [2, 0],
    "list_and_slice": lambda x: (slice(None), [1, -1, 0]),
    "matrix_of_indices": lambda x: _ints(x.device, [0, 3], [2, -2]),
    "indices_of_columns": lambda x: (slice(None), _ints(x.device, 4, 0, 4)),
    "indices_of_the_last_dimension": lambda x: (..., _ints(x.device, 2, 0)),
    "slice_and_indices": lambda x: (slice(1, 3), _ints(x.device, 0, 3)),
    "indices_and_step": lambda x: (_ints(x.device, 0, 3), slice(None, None, 2)),
    "two_adjacent": lambda x: (_ints(x.device, 0, 3, 1), _ints(x.device, 4, 0, -1)),
    "two_adjacent_at_the_end": lambda x: (slice(None), _ints(x.device, 0, 3), _ints(x.device, 2, 0)),
    "two_apart": lambda x: (_ints(x.device, 0, 3), slice(None), _ints(x.device, 2, 0)),
    "two_that_broadcast": lambda x: (_ints(x.device, [0], [3]), _ints(x.device, 4, 0, 1)),
    "indices_and_a_number": lambda x: (_ints(x.device, 0, 3), slice(None), 1),
    "number_and_indices": lambda x: (1, _ints(x.device, 0, 3)),
    "three": lambda x: (_ints(x.device, 0, 3), _ints(x.device, 4, 1), _ints(x.device, 2, 0)),
    "indices_and_a_new_dimension": lambda x: (None, _ints(x.device, 0, 3)),
    "int32_indices": lambda x: _ints(x.device, 3, 0, 1).to(torch.int32),
    "strided_indices": lambda x: _ints(x.device, 0, 9, 3, 9, 1, 9)[::2],
    "expanded_indices": lambda x: (_ints(x.device, 2).expand(3), _ints(x.device, 1, 0, 4)),
    "mask_of_rows": lambda x: _mask(x.device, 1, 0, 0, 1),
    "mask_without_true": lambda x: _mask(x.device, 0, 0, 0, 0),
    "mask_of_columns": lambda x: (slice(None), _mask(x.device, 0, 1, 1, 0, 1)),
    "mask_and_a_number": lambda x: (_mask(x.device, 1, 0, 1, 1), slice(None), 1),
    "mask_and_indices": lambda x: (_mask(x.device, 1, 0, 0, 1), _ints(x.device, 4, 0)),
    "mask_and_None": lambda x: (_mask(x.device, 1, 0, 0, 1), None),
    "mask_of_two_dimensions": lambda x: x[..., 0] > x[0, 0, 0],
    "mask_of_all_dimensions": lambda x: x > x[1, 1, 1],
    "True": lambda x: True,
    "False": lambda x: False,
}
"""Functions by name. Each takes a tensor of shape (4, 5, 3) or (4, 5, 401) and returns an index for it."""

LAYOUTS = ("contiguous", "transposed", "reversed", "strided", "narrowed")
_LAST = 401
"""The length of the last dimension of large tensors. A number as an index of any other dimension selects more than 1,024 elements."""


def check_index_expressions(subject: Subject, name: str, dtype: str) -> None:
    """Read and assign the elements that an index selects, and compare the results with those on the CPU.

    This is done for tensors of several layouts and, in float32, for a tensor with a long last dimension, to which fewer kinds of values are
    assigned. If the index consists only of tensors and the dtype is not bool, ``index_put_`` is also called with ``accumulate=True``, to
    add 1 to an element each time that the index selects it, or to add a row or a matrix of ones that is broadcast. If the index contains
    neither tensors nor lists, an int32 tensor is also assigned. With other indices, the CPU rejects a tensor whose dtype differs from
    ``dtype``. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the index in ``INDICES``.
        dtype: The dtype of the tensor.
    """
    index = INDICES[name]
    for last, layouts in ((3, LAYOUTS), (_LAST, LAYOUTS[2:3] if dtype == "float32" else ())):
        numbers = torch.randperm(20 * last, generator=torch.Generator().manual_seed(4)).view(4, 5, last)
        values = numbers % (2 if dtype == "bool" else 251 if dtype == "bfloat16" else 1 << 20)
        for layout in layouts:
            x = arranged(values.to(getattr(torch, dtype)), layout)
            for description, call in _calls(index, dtype).items():
                if last == _LAST and description not in ("read", "assign a number", "assign a row"):
                    continue
                with subject.sample(f"{description}, {name}, {layout}, {last} columns", {"name": name, "dtype": dtype}):
                    compare_call(subject, call, (x,), is_pure=description == "read")


def _calls(index: _Index, dtype: str) -> dict[str, Callable[[torch.Tensor], Any]]:
    def assign(make: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        def call(x: torch.Tensor) -> torch.Tensor:
            place = index(x)
            x[place] = make(x[place])
            return x

        return call

    def accumulate(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            places = index(x)
            return x.index_put_(places if isinstance(places, tuple) else (places,), make(x), accumulate=True)

        return call

    number = {"bool": True}.get(dtype, 7)
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "read": lambda x: x[index(x)],
        "assign a number": assign(lambda old: number),
        "assign a 0-d tensor": assign(lambda old: torch.tensor(number, dtype=old.dtype, device=old.device)),
        "assign a row": assign(lambda old: torch.arange(old.shape[-1] if old.ndim else 1, device=old.device).to(old.dtype)),
        "assign a tensor": assign(lambda old: torch.stack([old, old * 3 if old.dtype is not torch.bool else ~old], -1)[..., 1]),
    }
    example = torch.arange(60).view(4, 5, 3)
    found = index(example)
    parts = found if isinstance(found, tuple) else (found,)
    if not any(isinstance(one, torch.Tensor | list) for one in parts):
        calls["assign another dtype"] = assign(lambda old: torch.ones_like(old, dtype=torch.int32))
    if dtype != "bool" and all(isinstance(one, torch.Tensor) for one in parts):  # index_put_ rejects None and the ellipsis
        calls["accumulate"] = accumulate(lambda x: x.new_ones(()))
        shape = example[found].shape
        if shape[-1:] == example.shape[-1:]:
            calls["accumulate a row"] = accumulate(lambda x: torch.arange(x.shape[-1], device=x.device).to(x.dtype))
        if shape[-1:] == example.shape[-1:] and len(shape) > 1:
            calls["accumulate a matrix"] = accumulate(lambda x: x.new_ones(x[index(x)].shape[-2:]))
    return calls
