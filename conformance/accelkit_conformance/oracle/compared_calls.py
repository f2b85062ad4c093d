"""Comparison of the results of a call on the device with those of the same call on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle.aliasing import check_aliasing
from accelkit_conformance.oracle.changed_arguments import check_inputs
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.sample_transfer import tensors, to_device, to_double
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_CPU = torch.device("cpu")
_LOW = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)


def compare_call(
    subject: Subject, call: Callable[..., Any], arguments: Any, *, is_pure: bool = True, must_raise: str = "", **options: Any
) -> None:
    """Compare the results of a call on the device with the results of the same call on the CPU.

    If ``is_pure`` is True, the device must change no argument that the CPU leaves unchanged, and the results must share memory with the
    arguments as they do on the CPU (see :func:`check_aliasing`).

    If the device lacks a dtype that the call needs, this function does nothing. If the CPU rejects the call, no results are compared.
    Whether the device must reject the call too depends on ``must_raise``.

    Args:
        subject: The plugin under test, with its device.
        call: The function to call.
        arguments: The positional arguments of the call, on the CPU. Their memory layouts are kept.
        is_pure: Whether the call leaves its arguments unchanged. If False, the arguments after the call are compared with those on the CPU.
        must_raise: A part of an error text. If the CPU raises an error whose text contains this part, the device must also raise an error:
            a RuntimeError, NotImplementedError, TypeError, IndexError or ValueError. The device's error may differ from the CPU's in type
            and text. If ``must_raise`` is empty, the device may accept every call that the CPU rejects.
        options: Arguments of ``check_result``.

    Raises:
        AssertionError: If the results differ, if an argument is wrong after the call, if the results do not share memory with the arguments
            as on the CPU, or if the device accepts a call that it must reject.
        WrongError: If the device rejects a call that it must reject, but with an error of a different type.
    """
    if lacking_dtypes(subject, lambda: _arguments_and_results(call, to_device(arguments, _CPU))):
        return
    here, there = to_device(arguments, _CPU), to_device(arguments, subject.device)
    try:
        reference = tree_leaves(call(*here))
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as error:
        if must_raise and must_raise in str(error):
            with raises(subject, RuntimeError, TypeError, IndexError, ValueError, doing="a call that the CPU rejects"):
                call(*there)
        return
    found = tree_leaves(call(*there))
    assert len(found) == len(reference), f"gave {len(found)} results, not {len(reference)}"
    for mine, theirs, true in zip(found, reference, _truth(call, arguments, reference), strict=True):
        check_result(mine, theirs, true, subject.device, **{"cancels": True, **options})
    if is_pure:
        check_inputs(there, here, arguments)
        check_aliasing(found, reference, there, here)
        return
    for mine, theirs in zip(tensors(there), tensors(here), strict=True):
        check_result(mine, theirs, None, subject.device, cancels=True)


def _arguments_and_results(call: Callable[..., Any], arguments: Any) -> tuple[Any, Any]:
    """Return the arguments and the results of a call on the CPU. The results are None if the CPU rejects the call."""
    try:
        return arguments, call(*arguments)
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
        return arguments, None


def _truth(call: Callable[..., Any], arguments: Any, reference: list[Any]) -> list[Any]:
    """Return the results of the call on the CPU with arguments in double precision.

    A result is None if the dtype of the corresponding result in ``reference`` is not in ``_LOW``, or if the two differ in shape. All
    results are None if the call with arguments in double precision fails or gives a different number of results.
    """
    unknown = [None] * len(reference)
    if not any(one.dtype in _LOW for one in tensors(reference)):
        return unknown
    try:
        found = tree_leaves(call(*to_double(arguments)))
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
        return unknown
    if len(found) != len(reference):
        return unknown
    return [
        true if isinstance(true, torch.Tensor) and getattr(theirs, "dtype", None) in _LOW and true.shape == theirs.shape else None
        for true, theirs in zip(found, reference, strict=True)
    ]


def compare_calls(subject: Subject, name: str, calls: Mapping[str, tuple[Callable[..., Any], Any]], **options: Any) -> None:
    """Compare the results of several calls with :func:`compare_call`. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: A name for the calls, for messages.
        calls: The functions to call, each with its arguments, by description.
        options: Arguments of ``compare_call``.
    """
    for description, (call, arguments) in calls.items():
        with subject.sample(f"{name}, {description}", {"name": name}):
            compare_call(subject, call, arguments, **options)
