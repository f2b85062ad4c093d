"""Checks of values that go from Python, NumPy or the CPU into tensors of the device, and back."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.sample_transfer import tensors
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Call = Callable[[torch.Tensor], Any]


def _set(key: Any, value: Any) -> _Call:
    """Return a function that assigns ``value`` to ``x[key]``, where ``x`` is its argument.

    If ``key`` contains a tensor, a list or a NumPy array, the returned function first copies ``value`` to the device of ``x``, unless
    ``value`` is a number or a 0-d tensor. In all other cases, torch itself copies ``value``.
    """
    is_basic = not any(isinstance(one, torch.Tensor | list | np.ndarray) for one in (key if isinstance(key, tuple) else (key,)))

    def assign(x: torch.Tensor) -> torch.Tensor:
        x[key] = value if is_basic or not isinstance(value, torch.Tensor) or not value.ndim else value.to(x.device)
        return x

    return assign


def _several(*pairs: tuple[Any, Any]) -> _Call:
    """Return a function that makes several assignments, one for each pair of a key and a value."""

    def assign(x: torch.Tensor) -> torch.Tensor:
        for key, value in pairs:
            x[key] = value
        return x

    return assign


_MASK = torch.arange(20).view(5, 4) % 3 == 0
_ROWS = torch.tensor([4, 0, 2])

ASSIGNMENTS: dict[str, _Call] = {
    "numbers one after another": _several((1, 1), (2, 3), ((0, 0), -4), ((4, 3), 7.5), (slice(3, 4), 2)),
    "one number many times": _several(*(((i % 5, i % 4), float(i)) for i in range(60))),
    "a row on the CPU": _set(3, torch.arange(4.0)),
    "a column on the CPU": _set((slice(None), 1), torch.arange(5.0)),
    "a strided row on the CPU": _set(2, torch.arange(8.0)[::2]),
    "a transposed matrix on the CPU": _set(slice(None), torch.arange(20.0).view(4, 5).t()),
    "one row on the CPU for all rows": _set(slice(1, None, 2), torch.arange(4.0)),
    "integers on the CPU": _set(slice(1, 3), torch.arange(8).view(2, 4)),
    "float64 on the CPU": _set(slice(1, 3), torch.arange(8, dtype=torch.float64).view(2, 4)),
    "a number on the CPU": _set((1, 2), torch.tensor(3.25)),
    "a number on the CPU for all elements": _set(..., torch.tensor(3.25)),
    "an element of a tensor on the CPU": _set((1, slice(None)), torch.arange(9.0)[6]),
    "a tensor on the CPU, True and a number": _several((0, torch.tensor([1.0, 2.0, 3.0, 4.0])), (1, True), (2, -1)),
    "rows chosen by indices on the CPU": _set(_ROWS, torch.arange(12.0).view(3, 4)),
    "rows chosen by a list": _set([4, 0, 2], 9),
    "rows chosen by a NumPy array": _set(np.array([4, 0, 2]), torch.tensor(8.0)),
    "elements chosen by indices on the CPU": _set((_ROWS, torch.tensor([1, 3, 0])), torch.tensor([5.0, 6.0, 7.0])),
    "elements chosen by a mask on the CPU": _set(_MASK, 5),
    "values assigned to a mask on the CPU": _set(_MASK, torch.arange(7.0)),
    "rows chosen by a mask on the CPU": _set(torch.tensor([True, False, True, False, True]), torch.arange(12.0).view(3, 4)),
    "a slice with steps": _set((slice(0, 5, 2), slice(1, 4, 2)), torch.arange(6.0).view(3, 2)),
    "an empty slice": _set(slice(2, 2), torch.zeros(0, 4)),
    "copy_ to a transposed view": lambda x: (x.t()[1].copy_(torch.arange(5.0)), x),
    "fill_ of a number on the CPU": lambda x: (x[1:3].fill_(torch.tensor(2.5)), x),
    "masked_fill_ of a number on the CPU": lambda x: x.masked_fill_(x > 9, torch.tensor(2.5)),
    "index_fill_ of a number": lambda x: x.index_fill_(1, torch.tensor([0, 2], device=x.device), 4),
    "read rows chosen by indices on the CPU": lambda x: x[_ROWS],
    "read rows chosen by a list": lambda x: x[[4, 0, 2]],
    "read rows chosen by a NumPy array": lambda x: x[np.array([[4, 0], [2, 2]])],
    "read elements chosen by a mask on the CPU": lambda x: x[_MASK],
    "read elements chosen by indices on the CPU and a slice": lambda x: (x[1:, torch.tensor([3, 0])], x[_ROWS, :2], x[None, _ROWS, None]),
    "read with NumPy numbers": lambda x: (x[np.int64(3)], x[np.int32(1), 2], x[torch.tensor(2)], x[torch.tensor(True)]),
    "arithmetic with NumPy numbers": lambda x: (
        x * np.float32(2),
        np.float32(3) - x,
        x + np.float64(2),
        x * np.int64(2),
        np.float64(2) / (x + 1),
    ),
    "arithmetic with Python numbers": lambda x: (x + True, 2 - x, x * 0.1, 2**x, 7 // (x + 1), 7 % (x + 1), x > -3, x.add(2, alpha=3)),
    "stack of elements": lambda x: (torch.stack([x[0, 1], x[2, 3]]), torch.tensor([1.5, 2], device=x.device).to(x)),
}
"""Assignments and other calls that mix a tensor of shape (5, 4) with values on the host, by name. Each returns tensors."""


def check_assignments(subject: Subject) -> None:
    """Make calls that combine a tensor on the device and values on the host, and compare the results with those of the same calls on the
    CPU.

    Calls that need a dtype which the device lacks are left out. A failure is recorded in the subject if a result is not on the device or
    has a wrong dtype, shape or value, or if a call changes elements outside its tensor.
    """
    base = torch.arange(40.0).view(5, 8)
    for name, call in ASSIGNMENTS.items():
        if lacking_dtypes(subject, lambda call=call: call(base[:, ::2].clone())):  # type: ignore[misc]
            continue
        for layout in ("contiguous", "strided"):
            here, there = base.clone(), base.clone().to(subject.device, copy=True)
            views = [one[:, ::2] if layout == "strided" else one[:, ::2].contiguous() for one in (here, there)]
            with subject.sample(f"{name}, {layout}", {"name": name, "layout": layout}):
                for mine, theirs in zip(tensors(call(views[1])), tensors(call(views[0])), strict=True):
                    subject.assert_on_device(mine)
                    form, right = (mine.dtype, tuple(mine.shape)), (theirs.dtype, tuple(theirs.shape))
                    assert form == right, f"the result has the dtype and shape {form}, not {right}"
                    close = torch.isclose(mine.cpu(), theirs, rtol=1e-6)
                    assert bool(close.all()), f"{int((~close).sum())} of {theirs.numel()} elements are wrong: {mine.tolist()}"
                assert torch.equal(there.cpu()[:, 1::2], here[:, 1::2]), "elements outside the slice changed"


_EXTREMES = {"float16": 6.5e4, "bfloat16": 3e38, "float32": 3e38, "float64": 1e300, "complex64": 3e38, "complex128": 1e300}


def _values(dtype: str) -> torch.Tensor:
    """Return 24 values of a dtype. Integers include the largest and the smallest value of the dtype; floating-point and complex values
    include very large numbers and infinity."""
    kind = getattr(torch, dtype)
    if kind is torch.bool:
        return torch.arange(24) % 3 == 0
    values = (torch.arange(24) - 12 * kind.is_signed).to(kind)
    if kind.is_floating_point or kind.is_complex:
        values = values / 4
        values[5], values[6], values[7] = _EXTREMES[dtype], -_EXTREMES[dtype], float("inf")
        return values * (1 - 2j) if kind.is_complex else values
    values[5], values[6] = torch.iinfo(kind).max, torch.iinfo(kind).min
    return values


def check_python_values(subject: Subject) -> None:
    """Check that tensors convert to the same Python values, strings and NumPy arrays as on the CPU.

    Several views of a tensor are converted in each declared dtype and in float32. Differences are recorded in the subject.
    """
    conversions: dict[str, Callable[[torch.Tensor], Any]] = {
        "tolist": lambda x: x.tolist(),
        "item": lambda x: [one.item() for one in x.flatten()],
        "iteration": lambda x: [[one.tolist() for one in row] for row in x],
        "bool": lambda x: [bool(one) for one in x.flatten()],
        "complex": lambda x: [complex(one) for one in x.flatten()],
        "numpy(force=True)": lambda x: [x.numpy(force=True).dtype.name, x.numpy(force=True).tolist()],
        "len": lambda x: [len(x), x.shape, x.numel(), x.element_size(), x.nbytes, x.ndim],
        "in": lambda x: [x[0, 1].item() in x, x.max().item() + 1 in x] if x.dtype is torch.int64 else None,
        "int": lambda x: [int(one) if abs(float(one)) < 1e4 else 0 for one in x.flatten()] if not x.is_complex() else None,
        "float": lambda x: [float(one) for one in x.flatten()] if not x.is_complex() else None,
        "index": lambda x: [operator.index(one) for one in x.flatten()] if x.dtype is torch.int64 else None,
        "format": lambda x: [f"{x[0, 1]:.3f}", f"{x[0, 1]}"] if x.dtype is torch.float32 else None,
    }
    for dtype in (one for one in DTYPES if one == "float32" or subject.capabilities.can(f"dtype.{one}")):
        here = _values(dtype).view(4, 6)
        there = here.to(subject.device)
        views: dict[str, _Call] = {
            "whole": lambda x: x, "offset": lambda x: x[1:, :], "strided": lambda x: x[1::2, 1::2], "transposed": lambda x: x.t()[2:],
            "expanded": lambda x: x[1, 1].expand(2, 3),
        }  # fmt: skip
        for layout, view in views.items():
            for name, convert in conversions.items():
                if (name in ("bool", "in") and subject.lacks("bool")) or (dtype == "bfloat16" and name.startswith("numpy")):
                    continue
                with subject.sample(f"{name} of {layout} {dtype}", {"name": name, "dtype": dtype, "layout": layout}):
                    found, expected = repr(convert(view(there))), repr(convert(view(here)))
                    assert found == expected, f"{name} gave {found[:200]}, not {expected[:200]}"
        for shape, one in _ONE_ELEMENT.items():
            for name, convert in _NUMBERS.items():
                if (name == "bool" and subject.lacks("bool")) or (expected := _result(convert, one(here))) is None:
                    continue
                with subject.sample(f"{name} of {shape} {dtype}", {"name": name, "dtype": dtype, "layout": shape}):
                    found = convert(one(there))
                    assert repr(found) == repr(expected), f"{name} gave {found!r}, not {expected!r}"


_ONE_ELEMENT: dict[str, _Call] = {
    "an element": lambda x: x[2, 3],
    "shape (1,)": lambda x: x[2, 3:4],
    "shape (1, 1)": lambda x: x[2:3, 3:4],
    "shape (1, 1, 1)": lambda x: x[2:3, None, 3:4],
    "contiguous, shape (1, 1)": lambda x: x[2:3, 3:4].clone(),
}
"""Functions that return one element of a matrix with 4 rows and 6 columns, as tensors of various shapes."""
_NUMBERS: dict[str, _Call] = {
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "range": lambda x: list(range(x)),  # type: ignore[call-overload]
    "a slice": lambda x: torch.arange(9)[x:].tolist(),  # type: ignore[misc]
    "a size": lambda x: torch.zeros(x, 2).shape,  # type: ignore[call-overload]
}
"""Uses of a tensor with one element as a Python number."""


def _result(convert: _Call, x: torch.Tensor) -> Any:
    """Return the result of a conversion on the CPU, or None if the CPU rejects it."""
    try:
        return convert(x)
    except (RuntimeError, TypeError, ValueError):
        return None


def _arrays(dtype: str) -> dict[str, Any]:
    array = _values(dtype).view(4, 6).numpy()
    frozen = array.copy()
    frozen.flags.writeable = False
    return {
        "C order": array, "Fortran order": np.asfortranarray(array), "transposed": array.T, "strided": array[1::2, ::3], "0-d": array[1, 2],
        "empty": array[:0], "read-only": frozen, "broadcast": np.broadcast_to(array[1], (3, 6)),
    }  # fmt: skip


def check_arrays(subject: Subject) -> None:
    """Check that NumPy arrays in several layouts are converted to tensors on the device.

    There are arrays of float32 and of every declared dtype except bfloat16, which NumPy lacks. A failure is recorded in the subject if a
    tensor is not on the device or has a wrong dtype, shape or value. Unless the device is the CPU, also check that a tensor does not change
    if its array changes later.

    Raises:
        AssertionError: If a tensor changes with its array.
    """
    makers: dict[str, Callable[[Any], torch.Tensor]] = {
        "tensor": lambda array: torch.tensor(array, device=subject.device),
        "as_tensor": lambda array: torch.as_tensor(array, device=subject.device),
        "asarray": lambda array: torch.asarray(array, device=subject.device),
        "from_numpy": lambda array: torch.from_numpy(np.asarray(array)).to(subject.device),
        "new_tensor": lambda array: torch.zeros(1, device=subject.device).new_tensor(array, dtype=torch.from_numpy(np.array(array)).dtype),
    }
    for dtype in DTYPES:
        if dtype == "bfloat16" or (dtype != "float32" and not subject.capabilities.can(f"dtype.{dtype}")):
            continue
        for layout, array in _arrays(dtype).items():
            for name, make in makers.items():
                with subject.sample(f"{name} of {layout} {dtype}", {"name": name, "dtype": dtype, "layout": layout}):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # torch warns about read-only arrays
                        found, expected = make(array), torch.from_numpy(np.array(array))
                    subject.assert_on_device(found)
                    assert found.dtype == expected.dtype, f"{name} gave {found.dtype}, not {expected.dtype}"
                    assert found.shape == expected.shape, f"{name} gave the shape {tuple(found.shape)}, not {tuple(expected.shape)}"
                    assert torch.equal(found.cpu(), expected), f"{name} gave {found.tolist()}"
    if subject.device_type == "cpu":
        return
    for name, make in makers.items():
        array = np.arange(6, dtype=np.float32)
        made = make(array)
        array[:] = 9
        assert made.tolist() == [0, 1, 2, 3, 4, 5], f"the tensor that {name} made changed with the array"
