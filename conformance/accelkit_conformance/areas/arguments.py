"""Operators give the same results as on the CPU for arguments that few samples of torch's ``op_db`` have: other values of each argument,
empty tensors, index expressions, large integers, expanded, conjugated and repeated arguments. Calls that follow one another differ in one
argument only, so that a device that keeps something from an earlier call is detected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelkit_conformance.areas.operators import forward_overloads, names_of
from accelkit_conformance.checks import Case, check

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _recorded() -> Iterator[Case]:
    from accelkit_conformance.oracle.recorded_calls import overloads

    yield from (("full", (name,)) for name in overloads())


@check("full", requires=["dtype.float32"], over=_recorded)
def other_values(subject: Subject, overload: str) -> None:
    """A call of the overload gives the same results as on the CPU with another value of one argument that is not a tensor, for each such
    argument and several values. All these calls have the same tensors. At the end, the first call is repeated. Calls that the CPU rejects
    are left out."""
    from accelkit_conformance.oracle.other_arguments import check_other_arguments

    check_other_arguments(subject, overload)


@check("full", requires=["dtype.float32"], over=_recorded)
def rewritten_values(subject: Subject, overload: str) -> None:
    """A call of the overload is made twice with the same tensors. Between the two calls, the floating-point tensors are multiplied by 0.5
    in place. The second call gives the same results as on the CPU, both under ``no_grad`` and under ``inference_mode``."""
    from accelkit_conformance.oracle.other_arguments import check_rewritten_arguments

    check_rewritten_arguments(subject, overload)


@check("full", requires=["dtype.float32"], over=_recorded)
def empty_tensors(subject: Subject, overload: str) -> None:
    """A call of the overload and its in-place form give the same results as on the CPU if one dimension of one argument, or of several
    arguments, has length 0. Each dimension of each tensor is emptied once. Calls that the CPU rejects are left out."""
    from accelkit_conformance.oracle.empty_arguments import check_empty_arguments

    check_empty_arguments(subject, overload)


@check("full", requires=["dtype.float32"], over=names_of("keyword_values", "KEYWORDS"))
def keyword_values(subject: Subject, name: str) -> None:
    """Functions give the same results as on the CPU for combinations of keyword arguments: sizes, scale factors and modes of
    ``interpolate`` and ``grid_sample``; strides, paddings, dilations and groups of convolutions and pooling; modes and widths of ``pad``;
    weights, ``ignore_index``, ``label_smoothing`` and reductions of losses; and arguments of ``topk``, ``sort``, ``searchsorted``,
    ``unique`` and similar functions."""
    from accelkit_conformance.oracle.keyword_values import check_keyword_values

    check_keyword_values(subject, name)


_ATTENTION = [f"{size},{dtype}" for size in ("prefill", "decoding", "cross", "long", "one") for dtype in ("float32", "bfloat16", "float16")]


@check("full", requires=["dtype.{1}", "dtype.bool"], over=_ATTENTION)
def attention(subject: Subject, size: str, dtype: str) -> None:
    """``scaled_dot_product_attention`` gives the same result as on the CPU for heads of 64 and 80 numbers. The masks have every shape that
    can be broadcast. They are bool, or are added to the scores. Other calls are causal, have a ``scale``, have fewer heads of keys
    than of queries, or have values with another head size. Queries, keys and values are contiguous, permuted, or parts of one tensor."""
    from accelkit_conformance.oracle.attention_cases import check_attention

    check_attention(subject, size, dtype)


@check("full", requires=["dtype.float32"], over=names_of("ignored_values", "IGNORED"))
def ignored_values(subject: Subject, name: str) -> None:
    """NaN in a place that must be ignored does not appear in the result: in the addend of ``addmm`` and similar functions with ``beta=0``,
    in elements that ``where``, ``masked_fill`` or ``scatter_reduce`` with ``include_self=False`` do not select, and in tensors that are
    overwritten. The results are the same as on the CPU."""
    from accelkit_conformance.oracle.ignored_values import check_ignored_values

    check_ignored_values(subject, name)


def _indices() -> Iterator[Case]:
    from accelkit_conformance.oracle.index_expressions import INDICES

    for dtype in ("float32", "int64", "bool", "bfloat16"):
        yield from (("full", (name, dtype)) for name in INDICES)


@check("full", requires=["dtype.{1}", "dtype.int64", "dtype.int32", "dtype.bool"], over=_indices)
def index_expressions(subject: Subject, name: str, dtype: str) -> None:
    """``x[index]`` and ``x[index] = value`` give the same results as on the CPU. The index is a number, a slice, a list, a tensor of
    integers, a mask or a combination of these. The value is a number, a 0-d tensor, a row, a strided tensor or a tensor of another dtype.
    ``index_put_`` also accumulates. ``x`` is contiguous, transposed, strided, or has gaps between its rows."""
    from accelkit_conformance.oracle.index_expressions import check_index_expressions

    check_index_expressions(subject, name, dtype)


@check("full", requires=["dtype.{0}", "dtype.int64", "dtype.bool"], over=["uint8", "int8", "int16", "int32", "int64"])
def special_integers(subject: Subject, dtype: str) -> None:
    """For the largest and smallest integers of the dtype, for integers that float32 cannot represent, and for small positive and negative
    integers, pointwise and copying operators give the same results as on the CPU. Divisions by zero and divisions of or by the smallest
    integer are left out."""
    from accelkit_conformance.oracle.special_integers import check_special_integers

    check_special_integers(subject, dtype)


@check("full", requires=["dtype.{0}", "dtype.int64", "dtype.float32"], over=["bool", "uint8", "int8", "int16", "int32"])
def sums_of_small_integers(subject: Subject, dtype: str) -> None:
    """``sum``, ``cumsum``, ``prod``, ``mean`` and similar functions of 333 integers or booleans of the dtype give the same results as on
    the CPU, although the results do not fit into the dtype."""
    from accelkit_conformance.oracle.special_integers import check_sums_of_small_integers

    check_sums_of_small_integers(subject, dtype)


@check("full", requires=["dtype.float32"], over=names_of("factory_arguments", "FACTORIES"))
def factory_arguments(subject: Subject, name: str) -> None:
    """A function that creates a tensor gives the same values, dtype, strides and ``requires_grad`` as on the CPU, in two calls. Among the
    arguments are fractional bounds of integers, negative steps, large integers, empty shapes and nested lists."""
    from accelkit_conformance.oracle.factory_arguments import check_factory_arguments

    check_factory_arguments(subject, name)


@check("full", requires=["dtype.float32", "dtype.{0}"], over=["bfloat16", "float16", "float64"])
def default_dtype(subject: Subject, dtype: str) -> None:
    """After ``torch.set_default_dtype``, functions whose results have the default dtype, such as ``arange`` of floats and the division of
    integers, give the same dtype and values as on the CPU. With the default dtype float32, they do so before and afterwards."""
    from accelkit_conformance.oracle.factory_arguments import check_default_dtype

    check_default_dtype(subject, dtype)


_PAIRS = (
    "bool,int64", "bool,float32", "uint8,int8", "int32,int64", "int64,float32", "float16,float32", "bfloat16,float32", "float32,float64",
    "float32,complex64",
)  # fmt: skip


@check("full", requires=["dtype.{0}", "dtype.{1}", "dtype.bool"], over=_PAIRS)
def written_dtypes(subject: Subject, first: str, second: str) -> None:
    """An in-place operator whose other argument has another dtype, and an operator whose ``out=`` has another dtype than its result, write
    the same values as on the CPU. If the CPU raises an error because the result cannot be converted to the dtype of the written tensor, so
    does the device, and the tensor keeps its dtype."""
    from accelkit_conformance.oracle.written_dtypes import check_written_dtypes

    check_written_dtypes(subject, first, second)


def _conjugated() -> Iterator[Case]:
    from accelkit.runtime.comparison.tolerance import UNINITIALIZED
    from accelkit_conformance.areas.layout import ABOUT_STORAGE
    from accelkit_conformance.oracle import opdb
    from accelkit_conformance.oracle.lazy_operands import NOT_CONJUGATED

    for name, op in opdb.operators().items():
        for dtype in ("complex64", "float32"):
            if opdb.supports(op, dtype) and op.name not in (*ABOUT_STORAGE, *UNINITIALIZED, *NOT_CONJUGATED):
                yield "full", (name, dtype)


@check("full", requires=["dtype.{1}", "dtype.float32", "dtype.complex64"], over=_conjugated)
def lazy_operands(subject: Subject, name: str, dtype: str) -> None:
    """For one or two samples of the operator, the results are the same as on the CPU if the operands are results of ``conj()`` (complex64)
    or ``conj().imag`` (float32), which torch conjugates or negates only when they are read. Either all operands have this form, or only the
    last one."""
    from accelkit_conformance.oracle.lazy_operands import check_lazy_operands

    check_lazy_operands(subject, name, dtype)


@check("full", requires=["dtype.float32"], over=forward_overloads)
def expanded_arguments(subject: Subject, overload: str) -> None:
    """A call of the overload gives the same results as on the CPU if the first or the last dimension of one argument has a stride of 0.
    Each argument is expanded alone, and arguments of factorizations are left out."""
    from accelkit_conformance.oracle.result_strides import check_expanded_arguments

    check_expanded_arguments(subject, overload)


@check("full", requires=["dtype.float32"], over=forward_overloads)
def written_operands(subject: Subject, overload: str) -> None:
    """A call of the overload gives the same results as on the CPU if an argument is also the tensor of ``out=``, and if several arguments
    are the same tensor, one of which is changed in place. Calls that the CPU rejects, or whose result depends on the order of reading and
    writing on the CPU, are left out."""
    from accelkit_conformance.oracle.written_operands import check_written_operands

    check_written_operands(subject, overload)


_CONVERSIONS = (
    "float32,bfloat16", "float32,float16", "float64,float32", "int64,float32", "int32,float32", "int32,bfloat16", "float16,bfloat16",
    "float32,bool", "bfloat16,bool",
)  # fmt: skip


@check("training", requires=["dtype.{0}", "dtype.{1}", "dtype.float32"], over=_CONVERSIONS)
def rounded_conversions(subject: Subject, source: str, target: str) -> None:
    """Conversions to a dtype with fewer digits give the same results as on the CPU, bit for bit. They round to the nearest number, and to
    the even one of two equally near numbers. Numbers beyond the range become infinity, and NaN stays NaN. Zeros become False, and all other
    numbers, including NaN, become True."""
    from accelkit_conformance.oracle.rounded_conversions import check_rounded_conversions

    check_rounded_conversions(subject, source, target)


@check("full", requires=["dtype.float32", "dtype.int64"], over=names_of("many_items", "CALLS"))
def many_items(subject: Subject, name: str) -> None:
    """The call gives the same results as on the CPU with 300 tensors of different sizes, with 65,543 matrices, or with 70,003 indices, most
    of which are repeated. In a case that is named ``backward_of_...``, the gradient is compared."""
    from accelkit_conformance.oracle.many_items import check_many_items

    check_many_items(subject, name)


@check("full", requires=["dtype.float64"], over=names_of("many_items", "NUMBERS"))
def precise_numbers(subject: Subject, name: str) -> None:
    """Calls with a float64 tensor and Python numbers that float32 cannot represent give the same results as on the CPU. The numbers are
    operands, or arguments such as ``alpha``, ``value`` and ``eps``."""
    from accelkit_conformance.oracle.many_items import check_precise_numbers

    check_precise_numbers(subject, name)
