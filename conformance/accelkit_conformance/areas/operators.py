"""On the device, the operators of torch's ``op_db`` give the results that the CPU gives in float64. The permitted error is 8 eps or eight
times the CPU's error in the tested dtype, whichever is larger. The results have the right device, dtype, shape and ``torch.layout``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import Case, Profile, check
from accelkit_conformance.profiles.operators import CORE, DTYPES, SMOKE
from accelkit_conformance.results import Absent

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def profile_of(name: str, dtype: str) -> Profile:
    """Return the first of the profiles smoke, training and full that includes the given operator in the given dtype."""
    if dtype == "float32" and name in SMOKE:
        return "smoke"
    return "training" if name in CORE and dtype in ("float32", "bfloat16") else "full"


def _forward() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name, op in opdb.operators().items():
        for dtype in DTYPES:
            if opdb.supports(op, dtype):
                yield profile_of(name, dtype), (name, dtype)


def names_of(module: str, table: str, profile: Profile = "full") -> Callable[[], Iterator[Case]]:
    """Return a function that yields a case of the given profile for each name in the table ``oracle.<module>.<table>``."""
    return lambda: ((profile, (name,)) for name in getattr(importlib.import_module(f"accelkit_conformance.oracle.{module}"), table))


def _inplace() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name, op in opdb.operators().items():
        if op.inplace_variant is not None and not op.variant_test_name and opdb.supports(op, "float32"):
            yield "training" if name in CORE else "full", (name,)


def _out() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name, op in opdb.operators().items():
        dtype = next((dtype for dtype in DTYPES if opdb.supports(op, dtype)), None)
        if op.supports_out and not op.variant_test_name and dtype is not None:
            yield "training" if name in CORE else "full", (name, dtype)


def _pointwise() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name, op in opdb.operators().items():
        if opdb.is_pointwise(op):
            for dtype in ("float32", "bfloat16", "float16"):
                if opdb.supports(op, dtype):
                    yield profile_of(name, dtype), (name, dtype)


@check("full", requires=["dtype.{1}"], over=_forward)
def forward(subject: Subject, name: str, dtype: str) -> None:
    """For each sample, the result has the right values, device, dtype and shape. The result is a view of an argument if, and only if, it is
    a view on the CPU. The result of a pointwise operator has the right strides. Random values are not compared."""
    from accelkit_conformance.oracle import opdb
    from accelkit_conformance.oracle.lacking_dtypes import possible_samples
    from accelkit_conformance.oracle.op_compare import compare_forward
    from accelkit_conformance.oracle.reproducer import describe_sample, facts_of, program

    op = opdb.operators()[name]
    samples = possible_samples(subject, op, opdb.samples(op, dtype, subject.most_samples))
    for sample in subject.crashing_last(samples, lambda one: facts_of((one.input, one.args, one.kwargs), dtype)):
        given = (sample.input, sample.args, sample.kwargs)
        with subject.sample(
            describe_sample(given),
            facts_of(given, dtype),
            lambda given=given, number=sample.name: program(subject, name, given, dtype=dtype, number=number),
        ):  # type: ignore[misc]
            compare_forward(subject, op, given)


@check("full", requires=["dtype.float32"], over=_inplace)
def inplace(subject: Subject, name: str) -> None:
    """The in-place variant of the operator writes the result into its first argument, and returns this argument."""
    from accelkit_conformance.oracle import opdb
    from accelkit_conformance.oracle.lacking_dtypes import possible_samples
    from accelkit_conformance.oracle.op_compare import compare_forward
    from accelkit_conformance.oracle.reproducer import describe_sample, facts_of

    op = opdb.operators()[name]
    for sample in possible_samples(subject, op, opdb.samples(op, "float32", min(subject.most_samples, 8))):
        given = (sample.input, sample.args, sample.kwargs)
        if sample.broadcasts_input:
            continue

        def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            result = op.inplace_variant(first, *args, **kwargs)
            assert result is first, "the in-place variant did not return its first argument"
            return first

        def functional(first: Any, *args: Any, **kwargs: Any) -> Any:
            return op(first, *args, **kwargs).to(first.dtype)

        with subject.sample(describe_sample(given), facts_of(given, "float32")):
            compare_forward(subject, op, given, call, functional)


@check("full", requires=["dtype.{1}"], over=_out)
def out(subject: Subject, name: str, dtype: str) -> None:
    """With ``out=``, the result is written into the given tensor, which is then returned. Before the call, this tensor holds NaN (or
    another number if its dtype has no NaN), or it is empty. If it is empty, the call resizes it. If the CPU refuses to write a
    floating-point result into an int64 tensor, the device must refuse it too. This is not tested for operators for which torch skips its
    own test of ``out=``. Calls that the CPU does not implement are not made."""
    from accelkit_conformance.oracle.out_tensors import check_out_tensors

    check_out_tensors(subject, name, dtype)


def _out_dtypes() -> Iterator[Case]:
    from accelkit_conformance.oracle.out_dtypes import cases

    for name, dtype in cases():
        yield "training" if name in ("add", "sub", "mul", "true_divide", "maximum", "minimum", "cat") else "full", (name, dtype)


@check("full", requires=["dtype.{1}"], over=_out_dtypes)
def out_dtypes(subject: Subject, name: str, dtype: str) -> None:
    """With ``out=``, a tensor whose dtype is not that of the result gets the same values as on the CPU. Most operators must compute the
    result in its own dtype and then convert it; they must not convert their operands first. Integers are written into tensors of wider and
    narrower integers and of floating-point numbers; floating-point numbers are written into tensors of wider and narrower floating-point
    numbers and of complex numbers. The operands include numbers that the dtype of the given tensor cannot represent, and numbers whose
    difference is small in relation to their size. Calls that the CPU rejects are left out."""
    from accelkit_conformance.oracle.out_dtypes import check_out_dtypes

    check_out_dtypes(subject, name, dtype)


def _floats() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    floats = (name for name, op in opdb.operators().items() if opdb.supports(op, "float32"))
    return (("training" if name in SMOKE else "full", (name,)) for name in floats)


def _composed() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    yield from (("full", (name,)) for name in (*opdb.operators(), *opdb.foreach_operators()))


@check("full", requires=["dtype.float32"], over=_composed)
def overloads(subject: Subject, name: str) -> None:
    """The ATen overloads that the operator calls in its forward and backward pass give the same results as on the CPU. So do the aliases of
    these overloads. Each overload is called in its functional form, and in its ``out=`` and in-place forms if these forms exist."""
    from accelkit_conformance.oracle import opdb
    from accelkit_conformance.oracle.overloads import calls_of_operator, check_overloads

    check_overloads(subject, {**opdb.operators(), **opdb.foreach_operators()}[name], calls_of_operator(name))


@check("full", requires=["dtype.float32", "numbered_devices"], over=lambda: (case for case in _floats() if "sparse" not in case[1][0]))
def on_another_device(subject: Subject, name: str) -> None:
    """With arguments on a device that is not current, the results and the gradients of an operator have the right values and are on the
    device of the arguments. Numbers may be operands too, before or after the tensor. The arguments are float32 tensors. For one sample in
    each of the dtypes float64, int64, complex64 and bool, the results are compared too, but not the gradients. Random values are not
    compared."""
    from accelkit_conformance.oracle.places import check_operator_on_another_device

    check_operator_on_another_device(subject, name)


@check("full", requires=["dtype.float32"], over=names_of("extra_ops", "FUNCTIONS"))
def calls_outside_op_db(subject: Subject, name: str) -> None:
    """Calls that are not in torch's ``op_db`` give the same results as on the CPU, and so do the ATen overloads that they call. Examples of
    such calls are shifts, in-place integer operators, resampling, padding, fused layers, forward-mode derivatives, and logical operators
    on complex numbers whose real or imaginary part is 0 or NaN."""
    from accelkit_conformance.oracle.calls_outside_op_db import check_calls

    check_calls(subject, name)


def forward_overloads() -> Iterator[Case]:
    """Yield a case for each overload in ``oracle.recorded_calls.overloads()`` that does not compute gradients."""
    from accelkit_conformance.oracle.recorded_calls import overloads

    yield from (("full", (name,)) for name in overloads() if "_backward" not in name)


@check("full", requires=["dtype.float32"], over=forward_overloads, seconds=180)
def conditions(subject: Subject, overload: str) -> None:
    """A call to the overload gives the same results as on the CPU under various conditions: with several sizes, with NaN of both signs and
    infinities, with runs of neighbouring elements that are -inf, with ``out=``, in place, in each gradient mode, on another device, thread
    or stream, and after an error. Every pair of conditions that can be combined occurs in at least one call. If the device has streams and
    pinned memory, another call runs on a new stream on which copies that write the arguments are still queued. If the device's module has
    ``empty_cache``, this function is called right after two more calls, one of them in place if possible, and before their results are
    read. All other conditions also occur in bfloat16 and in float16, if both the device and the call support these dtypes.
    """
    from accelkit_conformance.oracle.condition_rows import rows
    from accelkit_conformance.oracle.conditions import check_under_conditions

    check_under_conditions(subject, overload, rows(is_contiguous=True))


@check("full", requires=["dtype.{1}"], over=_pointwise)
def special_values(subject: Subject, name: str, dtype: str) -> None:
    """For NaN, infinities, zeros, huge and tiny numbers, and pairs of these, a pointwise operator gives the same results as on the CPU."""
    from accelkit_conformance.oracle.special_values import check_special_values

    check_special_values(subject, name, dtype)


@check("full", requires=["dtype.float32"], over=names_of("large_tensors", "CALLS"))
def large_tensors(subject: Subject, name: str) -> None:
    """Calls on tensors of 16,777,228 elements, more than a float32 counter can count, give the same results as on the CPU. So do calls on
    bfloat16 matrices of 8,388,672 rows or columns, the sorting of a float32 matrix of 4,194,368 columns, and calls that count or add up
    elements which have only two different values. Of these results, some elements near the ends and near index 2^24 are compared. All
    elements are compared for calls that repeat, shift, reorder, select or overwrite parts of a five-dimensional tensor of 7,558,656
    integers or of a four-dimensional float16 or bfloat16 tensor, and for calls with a mask of 1,842,339 elements, of which about half are
    True. Some calls with such a mask follow one another directly."""
    from accelkit_conformance.oracle.large_tensors import check_large_tensors

    check_large_tensors(subject, name)


@check("training", requires=["dtype.float32"], over=names_of("reductions", "ALONG_A_DIMENSION", "training"))
def along_a_dimension(subject: Subject, name: str) -> None:
    """The operator gives the same results as on the CPU along each dimension of a six-dimensional tensor and along two dimensions of an
    eleven-dimensional tensor. The same is true along a dimension of length 2, 33 or 300 of a matrix that contains one NaN."""
    from accelkit_conformance.oracle.reductions import check_along_dimensions

    check_along_dimensions(subject, name)


@check("training", requires=["dtype.float32"], seconds=180, over=names_of("differentiable", "LONG", "training"))
def long_dimensions(subject: Subject, name: str) -> None:
    """If a dimension of an input or of the result has length 65,543, the result and the gradients are the same as on the CPU."""
    from accelkit_conformance.oracle.differentiable import LENGTH, LONG, check_function, random_inputs

    function, shapes = LONG[name]
    check_function(subject, name, function, random_inputs(*shapes), num_terms=LENGTH)


def _matrices() -> Iterator[Case]:
    for _, (name,) in names_of("matrix_functions", "FUNCTIONS")():
        yield "training" if name in ("solve", "cholesky", "qr", "det") else "full", (name,)


@check("full", requires=["dtype.float32"], over=_matrices, seconds=180)
def matrices(subject: Subject, name: str) -> None:
    """Linear algebra on well-conditioned matrices gives the same results as on the CPU in double precision, and leaves its arguments
    unchanged. Factors, which are not unique, are tested by their product, their form and the orthogonality of their rows or columns.

    The dtypes are float32, float64 and complex64. The shapes are those of a single small matrix, a batch of 3, a batch with more than 8192
    elements, and a single matrix with 70 rows, 70 columns or both. The matrices are square. If the function accepts other matrices, tall
    and wide matrices are tested as well. The matrices are stored by rows or columns, with an offset, with gaps, lazily conjugated, with
    reversed dimensions in memory, or expanded from one matrix. All combinations are tested. If a function can be called in several ways,
    each combination is tested with one of these ways. ``pinv`` and ``matrix_rank`` with ``atol`` or ``rtol`` get matrices that have half of
    their singular values below the tolerance.

    Functions that use only one triangle of a matrix, such as ``cholesky`` and ``solve_triangular``, get other numbers in the other
    triangle.

    Larger matrices in float32 and complex64 are stored by rows, and each call with them is made three times. They are one matrix with 129
    rows, and a batch of three with 33 rows. ``solve``, ``inv``, ``cholesky``, ``eigh``, ``lu_factor``, ``lu_solve``, ``cholesky_solve`` and
    ``solve_triangular`` also get 11 matrices with 100 rows and 200 matrices with 40 rows. ``solve``, ``inv``, ``cholesky`` and
    ``solve_triangular`` get a float32 matrix with 1,025 rows. For small matrices, the right sides of ``solve``, ``lu_solve``,
    ``cholesky_solve`` and ``solve_triangular`` have up to 70,003 columns, or 600,011 columns in float32.
    """
    from accelkit_conformance.oracle.matrices import check_matrices

    check_matrices(subject, name)


def _small() -> Iterator[Case]:
    return (("training", (*name, dtype)) for _, name in names_of("small_results", "SMALL")() for dtype in ("float32", "bfloat16"))


@check("training", requires=["dtype.{1}"], over=_small)
def small_results(subject: Subject, name: str, dtype: str) -> None:
    """Small results are precise. ``expm1``, ``log1p`` and similar functions are called with arguments close to zero, whose magnitudes are
    1e-1 to 1e-10. ``softplus``, ``sigmoid`` and others are called with arguments of magnitudes 1 to 32, for which the results approach 0.
    For each magnitude, the error is at most 64 eps of the largest result, or eight times the CPU's error if that is larger."""
    from accelkit_conformance.oracle.small_results import check_small_results

    check_small_results(subject, name, dtype)


_MIXED = (
    "bool,int64", "bool,float32", "uint8,int8", "int32,int64", "int64,float32", "int64,float16", "bfloat16,float16", "float16,float32",
    "bfloat16,float32", "float32,float64", "float32,complex64", "float64,complex128", "float64,complex64", "bool,uint8", "int16,int32",
    "uint8,int64", "bfloat16,float64",
)  # fmt: skip


@check("training", requires=["dtype.{0}", "dtype.{1}"], over=_MIXED)
def mixed_dtypes(subject: Subject, first: str, second: str) -> None:
    """For two arguments of the two tested dtypes, ``add``, ``maximum``, ``where``, ``cat`` and 60 other functions give results with the
    same dtype and values as on the CPU. One argument is a 1-d tensor. The other is a 1-d tensor, a 0-d tensor or a Python number. Each call
    is tested with the dtypes and the arguments in both orders. Calls that the CPU rejects are left out."""
    from accelkit_conformance.oracle.type_promotion import check_type_promotion

    check_type_promotion(subject, first, second)


_SORTED = [f"{name},{dtype}" for name in ("sort", "argsort", "out") for dtype in ("float32", "bfloat16", "int64", "int32", "uint8", "bool")]


@check("training", requires=["dtype.int64", "dtype.{1}"], over=_SORTED)
def stable_order(subject: Subject, name: str, dtype: str) -> None:
    """A sort with ``stable=True``, ascending or descending, returns equal elements in the order in which they are in the input. NaNs count
    as equal to each other, whatever their sign bits are."""
    from accelkit_conformance.oracle.equal_elements import check_stable_order

    check_stable_order(subject, name, dtype)


def _near_limits() -> Iterator[Case]:
    from accelkit_conformance.oracle.near_limits import cases

    for name, dtype in cases():
        yield "training" if name in ("compare", "clamp", "relu", "rounding") else "full", (name, dtype)


@check("full", requires=["dtype.{1}"], over=_near_limits)
def near_limits(subject: Subject, name: str, dtype: str) -> None:
    """Functions that change abruptly at certain numbers give the same results as on the CPU for these numbers and for the closest numbers
    on both sides. Examples are comparisons, ``clamp``, ``hardtanh``, ``floor``, ``searchsorted`` and, with 2 to 8,192 bins, ``histogram``.
    The numbers next to zero are the smallest normal ones. For ``asin`` and other functions with a limited domain, only the places of NaN
    are compared.

    Results that are exact by definition must be equal to those on the CPU. They are the results of ``maximum``, ``sort``, ``clamp``,
    ``relu``, ``hardshrink``, ``threshold``, ``sign``, ``floor``, ``where``, ``nextafter``, ``frexp``, ``neg``, ``copysign``, similar
    functions, and products with powers of two. ``nextafter`` gives the neighbours in both directions. For zero, it is tested if the device
    declares the capability ``subnormals``. ``signs_of_zeros`` compares the signs of zeros after ``neg``, ``abs``, ``copysign``, ``mul``,
    ``div``, ``clone``, ``where`` and ``cat``."""
    from accelkit_conformance.oracle.near_limits import check_near_limits

    check_near_limits(subject, name, dtype)


def _wide() -> Iterator[Case]:
    for table, profile in (("ARITHMETIC", "smoke"), ("COMPARING", "training"), ("ACCUMULATING", "training")):
        yield from names_of("wide_integers", table, profile)()


@check("smoke", requires=["dtype.int64"], over=_wide)
def wide_integers(subject: Subject, name: str) -> None:
    """Calls on int64 tensors give exact results, even above 2**40. ``max``, ``sort``, ``unique`` and other functions that compare the
    elements of a tensor distinguish 2**60 from 2**60 + 1 and, in int32 tensors, 2**30 from 2**30 + 1. ``sum``, ``prod``, ``cumsum`` and
    ``cumprod`` of int32 tensors give exact int64 results, and so do these and similar functions of bool, uint8, int8 and int16 tensors."""
    import torch

    from accelkit_conformance.oracle.wide_integers import computed

    for found, expected in computed(subject, name):
        subject.assert_on_device(found)
        assert found.dtype == expected.dtype, f"the result is {found.dtype}, not {expected.dtype}"
        assert torch.equal(found.cpu(), expected), f"gave {found.tolist()}, not {expected.tolist()}"


@check("smoke", requires=["subnormals"], over=["mul", "add", "clone", "neg", "where", "div"])
def subnormal_numbers(subject: Subject, name: str) -> None:
    """Operations that leave numbers unchanged, such as a multiplication by 1, keep all bits of subnormal float32 numbers."""
    import torch

    from accelkit_conformance.oracle.subnormals import CALLS, NUMBERS

    subject.needs(*{"where": ("bool",)}.get(name, ()))
    there = CALLS[name](NUMBERS.to(subject.device))
    subject.assert_on_device(there)
    found = there.cpu()
    if torch.equal(found, CALLS[name](torch.zeros_like(NUMBERS))):
        raise Absent("they are flushed to zero")
    assert torch.equal(found.view(torch.int32), NUMBERS.view(torch.int32)), f"gave {found.tolist()}, not {NUMBERS.tolist()}"
