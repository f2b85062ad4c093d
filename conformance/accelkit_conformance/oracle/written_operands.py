"""Recorded calls in which several arguments are the same tensor, or in which the result is written into an argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.op_compare import flat
from accelkit_conformance.oracle.overloads import in_place_overload, out_overload
from accelkit_conformance.oracle.recorded_calls import recorded_call
from accelkit_conformance.oracle.sample_transfer import to_device
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_CPU = torch.device("cpu")
# Calls that only torch itself makes, and calls whose arguments cannot be the same tensor.
_LEFT_OUT = re.compile(
    r"_backward|transformer|multi_head|batch_norm|embedding_bag|_scaled_mm|_weight_norm|segment_reduce|linalg|^lu_|_solve"
)


def check_written_operands(subject: Subject, overload: str) -> None:
    """Repeat the recorded call to an overload with one tensor as several arguments, and with an argument as ``out=``.

    The recorded call is described in ``recorded_calls``. The call with one tensor as several arguments is made in its functional form and
    in its in-place form. The call with ``out=`` is made once for each argument that has the shape and dtype of the result. This argument is
    then the output tensor.

    The results and the arguments after the call are compared with those on the CPU. A call is left out if the CPU rejects it. The result of
    a call that writes into an argument can be undefined, because the call can read elements that it has already overwritten. Such a call is
    left out if its result on the CPU differs from that of the same call with a new tensor for the result. Overloads that ``_LEFT_OUT``
    matches are left out, too. Differences are recorded in the subject.

    Raises:
        NotSupported: If the device lacks a dtype that the recorded call needs.
    """
    _, func, args, kwargs = recorded_call(overload)
    require_dtypes(subject, lambda: func(*args, **kwargs))
    if _LEFT_OUT.search(overload):
        return
    for description, call, given in (*_with_out(func, args, kwargs), *_repeated(func, args, kwargs)):
        with subject.sample(f"{overload}, {description}", {"name": overload}):
            compare_call(subject, call, given, is_pure=False)


def _with_out(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    found, results = out_overload(func), flat(func(*to_device(args, _CPU), **kwargs))
    if found is None or len(results) != 1 or not isinstance(results[0], torch.Tensor):
        return
    overload, names = found
    args = _broadcast(func, args, kwargs, results[0])
    for place, one in enumerate(args):
        if not isinstance(one, torch.Tensor) or one.shape != results[0].shape or one.dtype != results[0].dtype:
            continue

        def call(args: Any, kwargs: Any, place: int = place) -> Any:
            return overload(*args, **kwargs, **{names[0]: args[place]})  # noqa: PLR1736 # the copy of the argument

        if _is_right(lambda call=call: call(*to_device((args, kwargs), _CPU)), results[0]):
            yield f"argument {place} as out=", call, (args, kwargs)


def _broadcast(func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> Any:
    """Broadcast the tensors in ``args`` to the shape of the result where this is possible, and return the new arguments.

    If the call would give another result with the broadcast tensors, return ``args`` unchanged.
    """

    def broadcast(one: Any) -> Any:
        can_be = isinstance(one, torch.Tensor) and one.ndim <= result.ndim
        is_one = can_be and all(mine in (1, theirs) for mine, theirs in zip(one.shape[::-1], result.shape[::-1], strict=False))
        return one.expand(result.shape).contiguous() if is_one else one

    wide = tuple(broadcast(one) for one in args)
    return wide if _is_right(lambda: func(*wide, **kwargs), result) else args


def _repeated(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    first = args[0]
    if not isinstance(first, torch.Tensor):
        return
    is_same = [isinstance(one, torch.Tensor) and one.shape == first.shape and one.dtype == first.dtype for one in args]
    if sum(is_same) < 2:
        return
    given = tuple(first if same else one for one, same in zip(args, is_same, strict=True)), kwargs
    try:
        expected = flat(func(*given[0], **kwargs))[0]
    except Exception:  # the CPU does not accept these arguments
        return
    yield "the same tensor several times", lambda args, kwargs: func(*args, **kwargs), given
    in_place = in_place_overload(func)
    if in_place is not None and _is_right(lambda: in_place(*to_device(given[0], _CPU), **kwargs), expected):
        yield "in place, the same tensor several times", lambda args, kwargs: in_place(*args, **kwargs), given


def _is_right(call: Callable[[], Any], expected: torch.Tensor) -> bool:
    """Return whether a call on the CPU gives the expected result."""
    try:
        check_result(call(), expected, None, _CPU, cancels=True)
    except Exception:
        return False
    return True
