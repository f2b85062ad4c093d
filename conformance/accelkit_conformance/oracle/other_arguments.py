"""Recorded calls, repeated with another value of one non-tensor argument or with other numbers in the tensor arguments."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from accelkit_conformance.oracle.factorizations import unique_parts
from accelkit_conformance.oracle.known_differences import is_left_out, may_be_missing
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes, require_dtypes
from accelkit_conformance.oracle.op_compare import check_results, flat, truth_of
from accelkit_conformance.oracle.recorded_calls import recorded_call
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import to_device
from accelkit_conformance.oracle.variations import INTERNAL, WITHOUT_CHECKS

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_CPU = torch.device("cpu")
# Calls whose arguments are not changed. In other calls that only torch itself is expected to make, only boolean arguments are changed.
_UNCHECKED = re.compile(rf"{WITHOUT_CHECKS}|_scaled_mm|hash_tensor|native_group_norm")
_BY_NAME: dict[str, tuple[Any, ...]] = {
    "reduction": (0, 1, 2),
    "interpolation_mode": (0, 1, 2),
    "padding_mode": (0, 1, 2),
    "rounding_mode": (None, "floor", "trunc"),
    "reduce": ("sum", "prod", "mean", "amax", "amin", "add", "multiply"),
    "approximate": ("none", "tanh"),
    "side": ("left", "right"),
    "driver": ("gels", "gelsy", "gelsd"),
    "UPLO": ("L", "U"),
    "mode": ("reduced", "complete", "r"),
    "p": (0.0, 0.5, 1.0, 2.0, 3.0, float("inf")),
    "ord": (0.0, 0.5, 1.0, 2.0, 3.0, float("inf"), -float("inf")),
}
"""The values to try for an argument that has only a few possible values, or values with a special meaning, by the argument's name."""


def check_other_arguments(subject: Subject, overload: str) -> None:
    """Make the recorded call to an overload (see ``recorded_calls``). Then repeat it several times, each time with another value of one
    argument that is not a tensor. At the end, make the recorded call again.

    The results of each call are compared with those on the CPU. Calls that the CPU rejects are left out, and so are calls that need a dtype
    that the device lacks. Differences are recorded in the subject.

    Raises:
        NotSupported: If the device lacks a dtype that the recorded call needs.
    """
    op, func, args, kwargs = recorded_call(overload)
    require_dtypes(subject, lambda: func(*args, **kwargs))
    _check(subject, op, func, (args, kwargs), "as recorded")
    name = func.name().removeprefix("aten::")
    others = functools.partial(_others, is_internal=INTERNAL.search(name) is not None)
    for description, changed in [] if _UNCHECKED.search(name) else with_other_values(func, args, kwargs, others):
        _check(subject, op, func, changed, description)
    _check(subject, op, func, (args, kwargs), "as recorded, at the end")


def check_rewritten_arguments(subject: Subject, overload: str) -> None:
    """Make the recorded call to an overload (see ``recorded_calls``) twice under ``no_grad``, and twice under ``inference_mode``. Between
    the two calls in each mode, the floating-point arguments are multiplied by 0.5 in place.

    The results of the second call in each mode are compared with those on the CPU. Differences are recorded in the subject.

    Raises:
        NotSupported: If the device lacks a dtype that the call needs.
    """
    op, func, args, kwargs = recorded_call(overload)
    require_dtypes(subject, lambda: func(*args, **kwargs))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():  # type: ignore[operator]
            _check(subject, op, func, (args, kwargs), f"second call in {mode.__name__}", is_twice=True)


def _check(subject: Subject, op: Any, func: Any, given: Any, description: str, *, is_twice: bool = False) -> None:
    try:
        reference = flat(func(*(halved := _halved(given, is_twice))[0], **halved[1]))
    except Exception:  # the CPU does not accept these arguments
        return
    if lacking_dtypes(subject, lambda: func(*given[0], **given[1])):
        return
    sample, name = (given[0][0], given[0][1:], given[1]), func.name().removeprefix("aten::")
    with subject.sample(f"{name} {describe_sample(sample)}, {description}", facts_of(sample, "float32")):
        args, kwargs = to_device(given, subject.device)
        with may_be_missing(op, given, name):
            found = flat(func(*args, **kwargs))
            if is_twice:
                tree_map_only(torch.Tensor, _halve, (args, kwargs))
                found = flat(func(*args, **kwargs))
        check_found(subject, op, func, halved, reference=reference, found=found)


def check_found(subject: Subject, op: Any, func: Any, given: Any, *, reference: list[Any], found: list[Any]) -> None:
    """Check the results of a call on the device.

    Args:
        subject: The plugin under test, with its device.
        op: The OpInfo of the operator that makes the call, or a ``Nameless``.
        func: The overload that was called.
        given: The arguments of the call on the CPU, as ``(args, kwargs)``.
        reference: The leaves of the CPU's results.
        found: The leaves of the device's results.

    Raises:
        AssertionError: If a result is wrong.
    """
    name, sample = func.name().removeprefix("aten::"), (given[0][0], given[0][1:], given[1])
    truth = truth_of(func, sample, reference)
    assert len(found) == len(reference), f"gave {len(found)} results, not {len(reference)}"
    parts = zip(*(unique_parts(name, leaves) for leaves in (found, reference, truth)), strict=True)
    kept: list[Any] = [one for index, one in enumerate(parts) if not is_left_out(name, index, one[0], one[1])]
    check_results(op, sample, kept, subject.device, cancels=True, overload=name)


def _halved(given: Any, is_halved: bool) -> Any:
    copy = to_device(given, _CPU)
    return tree_map_only(torch.Tensor, _halve, copy) if is_halved else copy


def _halve(one: torch.Tensor) -> torch.Tensor:
    return one.mul_(0.5) if one.is_floating_point() and one.layout is torch.strided else one


def with_other_values(func: Any, args: Any, kwargs: Any, others: Callable[[Any, Any], list[Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the description and the arguments of several calls.

    Each call differs from ``func(*args, **kwargs)`` in the value of one argument. ``others`` returns the values to try instead of the
    present one. Its arguments are the argument's entry in the schema of ``func`` and the present value.
    """
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
        for other in others(argument, value):
            if place < len(args):
                given = (*args[:place], other, *args[place + 1 :]), kwargs
            elif argument.kwarg_only:
                given = args, {**kwargs, argument.name: other}
            elif place == len(args) and argument.name not in kwargs:
                given = (*args, other), kwargs
            else:
                given = args, {**kwargs, argument.name: other}
            yield f"{argument.name}={other!r}", given


def _others(argument: Any, value: Any, *, is_internal: bool) -> list[Any]:
    """Return values to try for an argument instead of ``value``.

    If ``is_internal`` is True, the call is one that only torch itself is expected to make. In this case, the list is empty unless ``value``
    is a boolean or a list of booleans.
    """
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, list | tuple) and value and all(isinstance(one, bool) for one in value):
        return [[*value[:index], not one, *value[index + 1 :]] for index, one in enumerate(value)]
    if is_internal:
        return []
    if argument.name in _BY_NAME:
        return [one for one in _BY_NAME[argument.name] if one != value]
    if argument.name == "dtype":
        return [one for one in (torch.float64, torch.bfloat16, torch.int64) if one != value]
    make = _MAKERS.get(kind)
    return [] if make is None else [one for one in make(value) if one != value]


def _floats(value: Any) -> list[Any]:
    return [0.25, 1.5, -0.5, 0, 2] if not isinstance(value, int | float) else [value * 0.5 + 0.25, -value, 0, 2]


def _ints(value: Any) -> list[Any]:
    return [0, 1, 2] if value is None else [value + 1, value - 1, value + 2, 0]


def _lists(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple) or not all(type(one) is int for one in value):
        return [[0]]
    longer = [[*value[:index], one + 1, *value[index + 1 :]] for index, one in enumerate(value)]
    shorter = [[*value[:index], one - 1, *value[index + 1 :]] for index, one in enumerate(value)]
    return [*longer, *shorter, list(value)[::-1]]


_MAKERS: dict[str, Callable[[Any], list[Any]]] = {"number": _floats, "float": _floats, "int": _ints, "List[int]": _lists}
