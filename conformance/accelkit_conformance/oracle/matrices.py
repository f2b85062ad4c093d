"""Check of linear algebra on single matrices and on batches of matrices, in several dtypes, shapes and memory layouts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from accelkit_conformance.oracle.changed_arguments import check_inputs
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.layouts import narrowed, offset, reversed_dimensions, strided, transposed
from accelkit_conformance.oracle.lazy_operands import lazy
from accelkit_conformance.oracle.matrix_equations import check_equations, equal_results
from accelkit_conformance.oracle.matrix_functions import FUNCTIONS, Call, Function, Shape
from accelkit_conformance.oracle.sample_transfer import to_device, to_double
from accelkit_conformance.oracle.tolerance import check_form
from accelkit_conformance.oracle.well_conditioned import random_numbers

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SQUARE: Sequence[Shape] = ((5, 5), (3, 5, 5), (2, 7, 25, 25), (70, 70))
_RECTANGULAR: Sequence[Shape] = (
    (7, 4), (3, 7, 4), (2, 7, 27, 22), (70, 40),
    (4, 7), (3, 4, 7), (2, 7, 22, 27), (40, 70),
)  # fmt: skip
"""Shapes of matrices: one small matrix, a batch, a batch with more than 8192 elements, and one matrix that exceeds the blocks of 32 and 64
rows and columns in which kernels work."""

_LARGE: Sequence[tuple[Shape, int]] = (((129, 129), 3), ((3, 33, 33), 200))
_LARGER: Sequence[tuple[Shape, int]] = (((11, 100, 100), 70), ((200, 40, 40), 1))
_WIDE: Sequence[tuple[Shape, int]] = (((2, 3, 3), 4096), ((1, 1, 1), 1109), ((2, 2, 2), 70_003), ((2, 2, 2), 600_011))
_LARGEST: Sequence[tuple[Shape, int]] = (((1025, 1025), 3),)
"""Shapes of square matrices, each with the number of columns of B."""
_LARGER_OF = ("solve", "inv", "cholesky", "lu_factor", "lu_solve", "cholesky_solve", "solve_triangular", "eigh")
_WIDE_OF = ("solve", "lu_solve", "cholesky_solve", "solve_triangular")
_LARGEST_OF = ("solve", "inv", "cholesky", "solve_triangular")
"""The functions that are tested with the shapes in ``_LARGER``, ``_WIDE`` and ``_LARGEST``. All functions are tested with ``_LARGE``."""
_NUM_CALLS = 3
"""The number of calls with the same large matrices. A device may keep memory or plans from one call to the next."""

_DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float64, "complex64": torch.complex128, "float64": torch.float64}
"""The tested dtypes, each with the dtype in which the matrices are created before they are converted to the tested dtype."""

_Arrange = Callable[[torch.Tensor], torch.Tensor]
_LAYOUTS: Mapping[str, _Arrange] = {
    "stored by rows": lambda x: x,
    "stored by columns": transposed,
    "with an offset": offset,
    "with gaps between elements": strided,
    "with gaps between rows": narrowed,
    "stored by columns with gaps between them": lambda x: narrowed(x.mT).mT,
}
_OF_COMPLEX: Mapping[str, _Arrange] = {
    "lazily conjugated": lazy,
    "lazily conjugated and stored by columns": lambda x: lazy(transposed(x)),
}
_OF_BATCHES: Mapping[str, _Arrange] = {"with reversed dimensions in memory": reversed_dimensions}
_EXPANDED = "expanded from one matrix"
_ERRORS = (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError)


def check_matrices(subject: Subject, name: str) -> None:
    """Call a function with all combinations of shapes and memory layouts, in each dtype that the device has, and check the results.

    Each combination is tested with only one of the function's calls and one layout of the right side B, which are chosen in turn. The
    arguments and the memory around them must stay unchanged. A call that the CPU rejects is left out. Differences are recorded in the
    subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function in ``FUNCTIONS``.

    Raises:
        NotSupported: If all calls need dtypes that the device lacks.
    """
    function, lacking, num_compared = FUNCTIONS[name], [], 0
    shapes = (*_SQUARE, *_RECTANGULAR) if function.forms == "any" else _SQUARE
    for (turn, dtype), (row, shape) in itertools.product(enumerate(_DTYPES), enumerate(shapes)):
        if subject.lacks(dtype):
            continue
        layouts = {**_LAYOUTS, **(_OF_COMPLEX if "complex" in dtype else {}), **(_OF_BATCHES if len(shape) > 2 else {})}
        plain = _arguments(function, dtype, shape)
        expected = functools.cache(functools.partial(expected_results, subject, plain))
        for number, layout in enumerate([*layouts, *([_EXPANDED] if len(shape) > 2 else [])]):
            description, call = [*function.calls.items()][(number + row + turn) % len(function.calls)]
            missing, reference, truth = expected(call, layout == _EXPANDED)
            if missing:
                lacking += missing
                continue
            others = [_EXPANDED] if layout == _EXPANDED else [*layouts]
            used = [layout, others[(number + 2 * row) % len(others)]][: len(plain)]
            title = f"{description} of {dtype} matrices of shape {list(shape)}, A {', B '.join(used)}"
            num_compared += 1
            with subject.sample(title, {"name": name, "dtype": dtype, "shape": shape, "layout": layout}):
                arguments = [_expand(one) if how == _EXPANDED else layouts[how](one) for one, how in zip(plain, used, strict=True)]
                check_call(subject, function, call, arguments, (reference, truth))
    _check_large(subject, name)
    if lacking and not num_compared:
        subject.needs(*sorted(set(lacking)))


def _check_large(subject: Subject, name: str) -> None:
    """Call a function several times with each of its larger matrices, and check the results of each call."""
    function = FUNCTIONS[name]
    further = ((_LARGER, _LARGER_OF), (_WIDE, _WIDE_OF), (_LARGEST, _LARGEST_OF))
    shapes = [*_LARGE, *(shape for shapes, names in further for shape in shapes if name in names)]
    for (turn, dtype), (row, (shape, num_columns)) in itertools.product(enumerate(("float32", "complex64")), enumerate(shapes)):
        description, call = [*function.calls.items()][(turn + row) % len(function.calls)]
        is_dear = shape[-1] > 1000 or num_columns > 500_000
        if subject.lacks(dtype) or (is_dear and dtype != "float32"):
            continue
        plain = _arguments(function, dtype, shape, num_columns)
        missing, *expected = expected_results(subject, plain, call, False)
        if missing:
            continue
        columns = f", {num_columns} columns in B" if function.has_right_side else ""
        title = f"{_NUM_CALLS} times {description} of {dtype} matrices of shape {list(shape)}{columns}"
        with subject.sample(title, {"name": name, "dtype": dtype, "shape": shape, "layout": "stored by rows"}):
            check_call(subject, function, call, plain, (expected[0], expected[1]), num_calls=_NUM_CALLS)


def _arguments(function: Function, dtype: str, shape: Shape, num_columns: int = 3) -> list[torch.Tensor]:
    arguments = [function.matrices(shape, _DTYPES[dtype])]
    if function.has_right_side:
        arguments.append(random_numbers((*shape[:-1], num_columns), _DTYPES[dtype]))
    return [one.to(getattr(torch, dtype)) for one in arguments]


def _expand(one: torch.Tensor) -> torch.Tensor:
    return one[(slice(1),) * (one.ndim - 2)].expand(one.shape)


def expected_results(subject: Subject, plain: list[torch.Tensor], call: Call, is_expanded: bool) -> tuple[list[str], list[Any], list[Any]]:
    """Return three lists: the dtypes that the device lacks for a call, the call's results on the CPU, and its results in double precision.
    If the device lacks a dtype, the other two lists are empty.
    """
    given = [_expand(one) for one in plain] if is_expanded else plain
    if lacking := lacking_dtypes(subject, lambda: (given, call(*given))):
        return lacking, [], []
    reference = tree_leaves(call(*given))
    return [], reference, tree_leaves(call(*to_double(given)))


def check_call(
    subject: Subject,
    function: Function,
    call: Call,
    arguments: list[torch.Tensor],
    expected: tuple[list[Any], list[Any]],
    *,
    num_calls: int = 1,
) -> None:
    """Call a function on the device, and check the form and the values of its results.

    The arguments must stay unchanged. An error is accepted if the CPU raises one too.

    Args:
        subject: The plugin under test, with its device.
        function: The function of matrices to which the call belongs.
        call: The call.
        arguments: Its arguments on the CPU.
        expected: The results on the CPU, and those in double precision.
        num_calls: How many times the call is made with the same arguments. The results of each call are checked.

    Raises:
        AssertionError: If a result is wrong, or if an argument has changed.
    """
    there, (reference, truth) = to_device(arguments, subject.device), expected
    subject.compute()  # a lazy device would otherwise compile a program for each memory layout, which takes minutes
    try:
        results = [tree_leaves(call(*there)) for _ in range(num_calls)]
    except _ERRORS:
        if _is_rejected(call, arguments):
            return
        raise
    check_inputs(there, arguments, arguments)
    for found in results:
        assert len(found) == len(reference), f"gave {len(found)} results, not {len(reference)}"
        for mine, theirs in zip(found, reference, strict=True):
            check_form(mine, theirs, subject.device)
        _check_values(function, arguments[0], found, truth)


def _is_rejected(call: Call, arguments: list[torch.Tensor]) -> bool:
    """Return whether ``call`` fails on the CPU with ``arguments``, in the memory layout that they have."""
    try:
        call(*arguments)
    except _ERRORS:
        return True
    return False


def _check_values(function: Function, matrix: torch.Tensor, found: list[Any], expected: list[Any]) -> None:
    original, *results = to_double([matrix, *(one.detach().cpu() for one in found)])
    check_equations(function.equations(original, *results) if function.equations else equal_results(results, expected), matrix)
