"""Recorded calls, repeated with one argument that does not fit: a tensor of another dtype or shape or on another device, or an invalid
integer."""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from accelkit_conformance.late_errors import raises, wait_for_late_errors
from accelkit_conformance.oracle.changed_arguments import check_inputs
from accelkit_conformance.oracle.error_inputs import ERRORS, LEFT_OUT
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.op_compare import flat
from accelkit_conformance.oracle.other_arguments import check_found, with_other_values
from accelkit_conformance.oracle.recorded_calls import recorded_call
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import to_device
from accelkit_conformance.oracle.variations import INTERNAL, WITHOUT_CHECKS

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_CPU, _META = torch.device("cpu"), torch.device("meta")
# Calls whose CPU kernel does not check its arguments, or whose results are not defined for other dtypes.
_UNCHECKED = re.compile(rf"{WITHOUT_CHECKS}|_scaled_mm|hash_tensor")
_DTYPES = ("int8", "int64", "float16", "bfloat16", "float64", "bool", "complex64")
_NUMBERS = (0, -1, -99, 99)
_NUM_SHAPES = 2
"""How many calls with a tensor of another shape are made for each overload."""


def check_refused_calls(subject: Subject, overload: str) -> None:
    """Repeat the recorded call to an overload (see ``recorded_calls``), each time with one argument that does not fit.

    If both the CPU and torch's shape inference, the ``meta`` device, refuse a call, the check that refuses it does not depend on the
    device. The device must then refuse the call too. If only the CPU refuses a call, for example because its kernel lacks a dtype, the
    device may accept it. A call with tensors on two devices must raise an error or give the right results. No call may change its
    arguments. Failures are recorded in the subject.

    Raises:
        NotSupported: If the device lacks a dtype that the recorded call needs.
    """
    op, func, args, kwargs = recorded_call(overload)
    require_dtypes(subject, lambda: func(*args, **kwargs))
    if _UNCHECKED.search(overload):
        return
    given, has_shapes = (args, kwargs), _error(func, to_device((args, kwargs), _META)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some conversions lose the imaginary part
        for description, changed in _with_other_dtypes(subject, given):
            if (error := _error(func, to_device(changed, _CPU))) is not None:
                _check_refusal(subject, func, changed, description, is_due=has_shapes and _is_shared(func, changed, error))
        if has_shapes and not INTERNAL.search(overload):
            integers = with_other_values(func, args, kwargs, _invalid_integers)
            shapes = itertools.islice(_refused(func, _with_other_shapes(given, overload)), _NUM_SHAPES)
            for description, changed, is_due in (*_refused(func, integers), *shapes):
                _check_refusal(subject, func, changed, description, is_due=is_due)
    _check_two_devices(subject, op, func, given)


def _refused(func: Any, calls: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the calls that both the CPU and torch's shape inference refuse, and whether a device has to refuse them too.

    Other calls are not made on the CPU, because its kernels need not check what torch's shape inference accepts.
    """
    for description, changed in calls:
        if _error(func, to_device(changed, _META)) is not None and (error := _error(func, to_device(changed, _CPU))) is not None:
            yield description, changed, _is_shared(func, changed, error)


def _error(func: Any, given: Any) -> Exception | None:
    """Return the error that a call raises, or None if it raises none."""
    try:
        func(*given[0], **given[1])
    except Exception as error:
        return error
    return None


def _is_shared(func: Any, given: Any, error: Exception) -> bool:
    """Return whether a call, which raises ``error`` on the CPU, is refused by a check that does not depend on the device."""
    inferred = _error(func, to_device(given, _META))
    return not LEFT_OUT.search(str(error)) and all(
        isinstance(one, ERRORS) and not isinstance(one, NotImplementedError) for one in (inferred, error)
    )


def _with_other_dtypes(subject: Subject, given: Any) -> Iterator[tuple[str, Any]]:
    """Yield the description and the arguments of calls in which one tensor, or every floating-point tensor, has another dtype."""
    leaves, spec = tree_flatten(given)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
    floating = [place for place in places if leaves[place].is_floating_point()]
    for name in (name for name in _DTYPES if not subject.lacks(name)):
        dtype = getattr(torch, name)
        for chosen in [*([place] for place in places), *([floating] if len(floating) > 1 else [])]:
            if any(leaves[place].dtype is not dtype for place in chosen):
                changed = [leaf.to(dtype) if place in chosen else leaf for place, leaf in enumerate(leaves)]
                which = f"tensor {places.index(chosen[0])}" if len(chosen) == 1 else "every floating-point tensor"
                yield f"{which} in {name}", tree_unflatten(changed, spec)


def _with_other_shapes(given: Any, overload: str) -> Iterator[tuple[str, Any]]:
    """Yield the description and the arguments of calls in which one tensor has another shape.

    One dimension of the tensor is one element shorter, the tensor has another dimension of length 1 in front, or its first dimension is
    missing. The calls are in an order that depends on the name of the overload.
    """
    leaves, spec = tree_flatten(given)
    calls = []
    for number, (place, tensor) in enumerate((place, leaf) for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)):
        if tensor.layout is not torch.strided or not tensor.numel():
            continue
        others = {f"dimension {dim} shortened": tensor.narrow(dim, 0, length - 1) for dim, length in enumerate(tensor.shape) if length > 1}
        others |= {"one more dimension": tensor[None]} | ({"one dimension fewer": tensor[0]} if tensor.ndim else {})
        calls += [
            (f"tensor {number} with {what}", tree_unflatten([*leaves[:place], other.clone(), *leaves[place + 1 :]], spec))
            for what, other in others.items()
        ]
    yield from sorted(calls, key=lambda call: zlib.crc32(f"{overload} {call[0]}".encode()))


def _invalid_integers(argument: Any, value: Any) -> list[Any]:
    """Return values for an argument that is an integer or a list of integers. Some of them may be valid."""
    if type(value) is int:
        return [one for one in _NUMBERS if one != value]
    if not isinstance(value, list | tuple) or not value or not all(type(one) is int for one in value):
        return []
    changed = [[*value[:place], one, *value[place + 1 :]] for place in range(len(value)) for one in _NUMBERS[:3]]
    return [*changed, [*value, value[-1]], [*value[:-1]]]


@contextlib.contextmanager
def _sample(subject: Subject, func: Any, given: Any, description: str) -> Iterator[str]:
    """Context manager for one call. It yields a short description of the call. The runner reports the call if it kills this process."""
    sample = (given[0][0], given[0][1:], given[1])
    doing = f"{func.name().removeprefix('aten::')} {describe_sample(sample)}, {description}"
    with subject.sample(doing, facts_of(sample, "float32")):
        subject.tell({"doing": doing})
        try:
            yield f"a call with {description}"
        finally:
            subject.tell({"doing": ""})


def _check_refusal(subject: Subject, func: Any, given: Any, description: str, *, is_due: bool) -> None:
    """Check that the device refuses a call or, if ``is_due`` is False, that it survives the call. Then check the arguments."""
    with _sample(subject, func, given, description) as doing:
        there = to_device(given, subject.device)
        if is_due:
            with raises(subject, *ERRORS, doing=doing):
                func(*there[0], **there[1])
        else:
            try:
                func(*there[0], **there[1])
                wait_for_late_errors(subject)
            except ERRORS:
                pass
        check_inputs(there, given, given)


def _check_two_devices(subject: Subject, op: Any, func: Any, given: Any) -> None:
    """Check calls in which one tensor is on the CPU, or on a second device, and the other tensors are on the device."""
    leaves, spec = tree_flatten(given)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
    others = ([] if subject.device_type == "cpu" else [_CPU]) + [device for device in subject.devices if device != subject.device][:1]
    for place in places if len(places) > 1 else []:
        for other in others:
            with _sample(subject, func, given, f"tensor {places.index(place)} on {other}"):
                there = tree_flatten(to_device(given, subject.device))[0]
                there[place] = to_device(leaves[place], other)
                args, kwargs = tree_unflatten(there, spec)
                try:
                    found = flat(func(*args, **kwargs))
                    wait_for_late_errors(subject)
                except ERRORS:
                    found = None
                check_inputs((args, kwargs), given, given)
                if found is not None:
                    check_found(subject, op, func, given, reference=flat(func(*given[0], **given[1])), found=found)
