"""Operators that write their results into tensors of another dtype, which are passed as ``out=``.

The results are computed in their own dtype, and then converted. A device that first converts the operands to the dtype of ``out=`` gives
other results for many of the operands here: for integers that a narrower dtype cannot represent, for numbers whose difference is small, and
for numbers for which only one of the two dtypes overflows.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.converted_results import check_converted, real_parts
from accelkit_conformance.oracle.known_differences import may_be_missing
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.op_compare import check_results, flat, place, truth_of, watching_draws
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import tensors, to_device
from accelkit_conformance.oracle.tolerance import check_form

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_CPU = torch.device("cpu")
_OPERANDS = ("float32", "int32", "int64")
_OUTS: dict[torch.dtype, tuple[str, ...]] = {
    torch.float32: ("float64", "float16", "bfloat16", "complex64"),
    torch.int32: ("int64", "int16", "uint8", "float32", "float16"),
    torch.int64: ("int32", "int16", "uint8", "float32", "float16"),
    torch.bool: ("int64", "uint8", "float16"),
}
"""The dtypes of ``out=``, by the dtype of the result."""

_NUMBERS = {
    "float32": (0.375, -0.625, 1.0625, 2.875, 100.25, 2048.0, 2049.25, 69990.5, 70000.0, -70000.0),
    "int32": (1, 2, 7, 256, 300, 6000, 65536, 65537, 70000, 16777216, 16777217, -3, -6000, -70000),
    "int64": (1, 2, 7, 300, 65537, 70000, 16777217, 2**31 + 5, 2**33 + 3, -3, -70000, -(2**31) - 9),
}
"""The operands of pointwise operators, by dtype. No number is 0, because the operators include divisions."""
_MODERATE = {"float32": (0.375, 2.875, 17.0625, 100.25), "int32": (1, 2, 17, 100), "int64": (1, 2, 17, 100)}
"""The operands, by dtype, of functions that few devices compute precisely or quickly for large arguments."""
_OVERFLOWING = (2e38, -2e38, 1e30, 100.25, -0.625)
_WITH_OVERFLOW = ("add", "sub", "mul", "true_divide", "div.no_rounding_mode", "square")
_SECOND = {"float32": (0.375, 1.0625, 2.875), "int32": (1, 2, 7), "int64": (1, 2, 7)}
# Operators whose second operand is a number in _SECOND, because their results grow fast, or because the operand is a number of bits.
_GROWING = ("pow", "ldexp", "lcm", "bitwise_left_shift", "bitwise_right_shift")
_DELICATE = ("special.", "mvlgamma", "polygamma")
# Operators that are called only with torch's own samples.
_ONLY_SAMPLES = (
    "special.chebyshev", "special.shifted", "special.hermite", "special.laguerre", "special.legendre", "special.zeta", "igamma", "fft.",
    "cumprod", "sparse.",
)  # fmt: skip


def cases() -> Iterator[tuple[str, str]]:
    """Yield the name of each operator with each dtype of operands for which the CPU accepts an ``out=`` tensor of another dtype."""
    for name, op in opdb.operators().items():
        for dtype in _OPERANDS if op.supports_out else ():
            if opdb.supports(op, dtype) and _is_accepted(op, dtype):
                yield name, dtype


def _is_accepted(op: Any, dtype: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some operators are deprecated
        return any(_on_cpu(op, given)[1] for given in _inputs(op, dtype))


def check_out_dtypes(subject: Subject, name: str, dtype: str) -> None:
    """Call an operator with ``out=`` tensors whose dtypes differ from that of its result, and compare the results with those on the CPU.

    Differences are recorded in the subject. Calls that the CPU rejects, and calls that need a dtype which the device lacks, are left out.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the operator in torch's ``op_db``.
        dtype: The dtype of its operands.

    Raises:
        NotSupported: If each call needs a dtype that the device lacks.
    """
    op = opdb.operators()[name]
    lacking: set[str] = set()
    for given in _inputs(op, dtype):
        results, references = _on_cpu(op, given)
        missing = lacking_dtypes(subject, lambda: (given, op(given[0], *given[1], **given[2]))) if references else []  # noqa: B023
        lacking.update(missing)
        if missing or not references:
            continue
        truth = truth_of(op, given, flat(results))
        for out, reference in references.items():
            if subject.lacks(out):
                continue
            with subject.sample(f"{describe_sample(given)}, out= of {out}", {**facts_of(given, dtype), "out": out}):
                there = place(op, given, subject.device)
                with may_be_missing(op, given):
                    found = _call(op, there, results, out)
                for mine, theirs, own, true in zip(found, reference, flat(results), truth, strict=True):
                    check_form(mine, theirs, subject.device)
                    if opdb.is_sensitive(name):
                        converted = [real_parts(one.cpu(), own).to(own.dtype) for one in (mine, theirs)]
                        check_results(op, given, [(*converted, true)], _CPU)
                    else:
                        check_converted(mine.cpu(), theirs, own, own if true is None else true)
    if lacking and not subject.num_samples:
        subject.needs(*sorted(lacking))


def _inputs(op: Any, dtype: str) -> Iterator[Any]:
    """Yield inputs of an operator, as ``(input, args, kwargs)``: torch's own samples, and inputs with other numbers."""
    name, chosen, is_pointwise = opdb.full_name(op), opdb.dtype_of(dtype), opdb.is_pointwise(op)
    is_changed = not name.startswith(_ONLY_SAMPLES) and not opdb.is_sensitive(name)
    for sample in opdb.samples(op, dtype, 1 if is_pointwise else 3):
        given = sample.input, sample.args, sample.kwargs
        yield given
        if is_changed and not is_pointwise and any(one.dtype is chosen for one in tensors(given)):
            yield tree_map_only(torch.Tensor, lambda one: _changed(one) if one.dtype is chosen else one, given)
        elif is_changed and is_pointwise:
            keywords = sample.kwargs if op.variant_test_name else {}
            is_moderate = name.startswith(_DELICATE) or (dtype == "int64" and opdb.num_arguments(op) == 1)  # such as sin
            first = torch.tensor((_MODERATE if is_moderate else _NUMBERS)[dtype], dtype=chosen)
            second = torch.tensor(_SECOND[dtype], dtype=chosen) if name in _GROWING else first
            yield _pairs(op, first, second, keywords)
            if name in _WITH_OVERFLOW and dtype == "float32":
                yield _pairs(op, torch.tensor(_OVERFLOWING), torch.tensor(_OVERFLOWING), keywords)


def _pairs(op: Any, first: torch.Tensor, second: torch.Tensor, keywords: dict[str, Any]) -> Any:
    """Return an input of a pointwise operator: all pairs of numbers, or only the first numbers if the operator has one argument."""
    if opdb.num_arguments(op) == 1:
        return first, (), keywords
    return first.repeat_interleave(len(second)), (second.repeat(len(first)),), keywords


def _changed(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers whose differences are small in relation to their size, or integers most of which do not fit into int16."""
    return numbers + 3000.25 if numbers.is_floating_point() else numbers * 7001


def _on_cpu(op: Any, given: Any) -> tuple[Any, dict[str, list[Any]]]:
    """Return the results of the operator on the CPU without ``out=``, and the results for each dtype of ``out=`` that the CPU accepts.

    The second value maps these dtypes to their results. It is empty if the CPU rejects the input, or if the operator draws random numbers.
    """
    references: dict[str, list[Any]] = {}
    first, args, kwargs = to_device(given, _CPU)
    try:
        with watching_draws(op) as draws:
            results = op(first, *args, **kwargs)
    except Exception:
        return None, {}
    own = next((one.dtype for one in tensors(results)), None)
    if own is None or draws.are_seen:
        return results, {}
    for out in _OUTS.get(own, ()):
        if torch.can_cast(own, opdb.dtype_of(out)):
            with contextlib.suppress(Exception):  # the CPU does not accept this dtype
                references[out] = _call(op, to_device(given, _CPU), results, out)
    return results, references


def _call(op: Any, given: Any, results: Any, out: str) -> list[Any]:
    """Call the operator with ``out=`` tensors of the dtype ``out``, and return these tensors.

    ``results`` are the results without ``out=``. A result whose dtype differs from that of the first result gets an ``out=`` tensor of its
    own dtype instead.
    """
    first, args, kwargs = given
    device = next((one.device for one in tensors(given)), torch.device(kwargs.get("device", _CPU)))
    own = tensors(results)[0].dtype

    def target(one: torch.Tensor) -> torch.Tensor:
        return torch.zeros(one.shape, dtype=opdb.dtype_of(out) if one.dtype is own else one.dtype, device=device)

    targets = tree_map_only(torch.Tensor, target, results)
    op(first, *args, out=targets, **kwargs)
    return flat(targets)
