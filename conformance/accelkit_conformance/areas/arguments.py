"""Operators give the same results as on the CPU for arguments that are rare among the samples of torch's ``op_db``, such as empty tensors,
index expressions, large integers and expanded tensors. Some checks repeat a call, but change the value of one argument or the numbers in
the tensors. A device that reuses a value from an earlier call fails these checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from accelkit_conformance.areas.operators import forward_overloads, names_of
from accelkit_conformance.checks import Case, check

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _combined(module: str, table: str, *values: str) -> Callable[[], Iterator[Case]]:
    """Return a function that yields a case for each entry of a table in ``oracle/<module>.py``, combined with each value."""
    return lambda: ((profile, (*names, value)) for profile, names in names_of(module, table)() for value in values)


def _recorded() -> Iterator[Case]:
    from accelkit_conformance.oracle.recorded_calls import overloads

    yield from (("full", (name,)) for name in overloads())


@check("full", requires=["dtype.float32"], over=_recorded)
def other_values(subject: Subject, overload: str) -> None:
    """A recorded call to an ATen overload is repeated with copies of the same tensors, and each call gives the same results as on the CPU.
    The first and the last call are as recorded. In each of the other calls, one argument that is not a tensor (a number, a bool, a list,
    a dtype or a string) has another value. If only torch itself calls the overload, only bools and lists of bools are changed. For a few
    overloads, no argument is changed. Calls that the CPU rejects are left out.
    """
    from accelkit_conformance.oracle.other_arguments import check_other_arguments

    check_other_arguments(subject, overload)


@check("full", requires=["dtype.float32"], over=_recorded)
def rewritten_values(subject: Subject, overload: str) -> None:
    """A recorded call to an ATen overload is made twice with the same tensors. Between the two calls, the floating-point tensors are
    multiplied by 0.5 in place. The second call gives the same results as on the CPU, both under ``no_grad`` and under ``inference_mode``. A
    call that the CPU rejects is left out."""
    from accelkit_conformance.oracle.other_arguments import check_rewritten_arguments

    check_rewritten_arguments(subject, overload)


@check("full", requires=["dtype.float32"], over=_recorded)
def empty_tensors(subject: Subject, overload: str) -> None:
    """A recorded call to an ATen overload is repeated with dimensions of its tensors shortened to length 0. The call and its in-place form
    give the same results as on the CPU. Each dimension of each tensor is shortened in turn. In further calls, each dimension of the
    first tensor is shortened together with the matching dimensions of the other tensors. Two dimensions match if they have the same
    length and the same position, counted from the last dimension. Reductions that have no value for no elements, such as the maximum,
    raise an error. Other calls that the CPU rejects are left out. So are overloads that only torch itself calls, and overloads whose
    results for empty tensors are not defined.
    """
    from accelkit_conformance.oracle.empty_arguments import check_empty_arguments

    check_empty_arguments(subject, overload)


@check("full", requires=["dtype.float32"], over=names_of("keyword_values", "KEYWORDS"))
def keyword_values(subject: Subject, name: str) -> None:
    """Functions give the same results as on the CPU for combinations of values of their keyword arguments. The functions are
    ``interpolate``, ``grid_sample``, convolutions, pooling, ``pad``, losses, ``topk``, ``sort``, ``searchsorted``, ``unique``,
    normalizations, distances, activations, reductions, matrix products, attention, scatter functions, pointwise functions, ``fold``,
    ``roll``, ``embedding`` and similar functions. Among their arguments are modes, sizes, strides, paddings, dilations, norms, dtypes,
    factors, bounds, ``ignore_index``, ``label_smoothing`` and ``reduction``. Points of ``grid_sample`` are between pixels, exactly on
    pixels, at the border and far outside of the image. In the case ``close_numbers``, a number in each call differs from the number in the
    previous call by 1e-5 or less. Combinations that the CPU rejects are left out."""
    from accelkit_conformance.oracle.keyword_values import check_keyword_values

    check_keyword_values(subject, name)


@check("full", requires=["dtype.float32"], over=names_of("chained_calls", "FIRST"))
def chained_calls(subject: Subject, name: str) -> None:
    """A function of a result that nothing else reads, such as ``argmax`` of ``softmax``, gives the same result as on the CPU, in float32
    and bfloat16. Devices that delay their work or fuse operators may compute both functions with one kernel."""
    from accelkit_conformance.oracle.chained_calls import check_chained_calls

    check_chained_calls(subject, name)


@check("full", requires=["dtype.float32"], over=_combined("keyword_values", "KEYWORDS", "special_values", "dtypes", "empty", "near_one"))
def keyword_variants(subject: Subject, name: str, variant: str) -> None:
    """The functions of the check ``keyword_values`` give the same results as on the CPU for combinations of values of their keyword
    arguments and for unusual tensors: with NaN, with an infinity, zeros, or a very large or very small number, in two of nine other dtypes,
    which differ from call to call, with a dimension of length 0, or with numbers that differ from 1 by about 0.001. Calls that the CPU
    rejects are left out. A call may also raise an error if PyTorch itself implements it only for the CPU."""
    from accelkit_conformance.oracle.keyword_variants import check_keyword_variants

    check_keyword_variants(subject, name, variant)


@check("full", requires=["dtype.float32"], over=names_of("keyword_values", "KEYWORDS"))
def keyword_gradients(subject: Subject, name: str) -> None:
    """The functions of the check ``keyword_values`` give the same results and gradients as on the CPU for combinations of values of their
    keyword arguments, and for inputs in various memory layouts: contiguous, transposed, channels_last, strided, with an offset, with gaps
    between rows, or with the dimensions in the opposite order. Each combination of values is tested with one of these layouts. The output
    gradients of functions of images are contiguous, channels_last, strided or expanded from a single number."""
    from accelkit_conformance.oracle.keyword_values import check_keyword_gradients

    check_keyword_gradients(subject, name)


@check("full", requires=["dtype.{1}", "dtype.bool"], over=_combined("attention_cases", "SIZES", "float32", "bfloat16", "float16"))
def attention(subject: Subject, size: str, dtype: str) -> None:
    """``scaled_dot_product_attention`` gives the same result as on the CPU for the head dimensions 64 and 80 and for up to 4,099 queries or
    keys. Queries, keys and values are contiguous, permuted, or slices of larger tensors. Some calls are causal. Some have a ``scale``. In
    some calls, keys and values have fewer heads than queries, or the head dimension of the values differs from that of queries and keys.
    Some calls with the head dimension 64, without slices and with at most 130 queries and keys have a mask. Each mask is either boolean or
    a tensor that is added to the scores. The masks have five different shapes, most of which are broadcast. They are contiguous, expanded,
    transposed, or parts of larger tensors.
    """
    from accelkit_conformance.oracle.attention_cases import check_attention

    check_attention(subject, size, dtype)


def _attention_sizes() -> Iterator[Case]:
    from accelkit_conformance.oracle.attention_combinations import SIZES

    yield from (("full", (size, dtype)) for size, (*_, dtypes) in SIZES.items() for dtype in dtypes)


@check("full", requires=["dtype.{1}", "dtype.bool"], over=_attention_sizes)
def attention_combinations(subject: Subject, size: str, dtype: str) -> None:
    """``scaled_dot_product_attention`` gives the same results and gradients as on the CPU for combinations of options. Every pair of values
    of two different options occurs in at least one call, except pairs whose result is not defined. There are 192, 361 or 1,040 keys and 1
    to 192 queries. The head dimension is one of six numbers from 16 to 256. The call is causal, has no mask, or has a mask for padding, a
    window or several documents, a random mask per head, or a mask in which some queries must not attend to any key. Each mask is boolean,
    or is added to the scores, with -inf, the lowest number of the dtype or -10,000 at the keys that are masked out. Keys and values have
    two heads, like the queries, or one. All arguments are contiguous, one is permuted, all begin at an odd offset, or keys and values are
    expanded. In some calls, the scores are scaled, all scores are near 120 or -120, or one query contains NaN. The batch has two entries or
    none. Gradients are computed for about half of the calls, in some of them also with respect to the mask, and in others inside
    ``save_on_cpu``.
    """
    from accelkit_conformance.oracle.attention_combinations import check_combinations

    check_combinations(subject, size, dtype)


@check("full", requires=["dtype.float32"], over=names_of("ignored_values", "IGNORED"))
def ignored_values(subject: Subject, name: str) -> None:
    """Functions give the same results as on the CPU even if numbers that they must ignore are NaN. Examples are the addend of ``addmm``
    with ``beta=0``, elements that ``where``, ``index_select`` or ``nansum`` leave out, and elements that ``masked_fill``, ``copy_`` or
    ``scatter_reduce`` with ``include_self=False`` overwrite. Products whose inner dimension has length 0, with up to 70,001 columns, are 0,
    even if ``out=`` holds NaN. A number must not be ignored because it is multiplied by 0: ``mul`` by 0, and ``addcmul`` and ``addcdiv``
    with ``value=0``, give NaN for NaN and infinities.
    """
    from accelkit_conformance.oracle.ignored_values import check_ignored_values

    check_ignored_values(subject, name)


def _product_sizes() -> Iterator[Case]:
    from accelkit_conformance.oracle.product_sizes import DTYPES
    from accelkit_conformance.oracle.products import PRODUCTS

    yield from (("full", (name, dtype)) for name in PRODUCTS for dtype in DTYPES)


@check("full", requires=["dtype.{1}", "dtype.float32"], over=_product_sizes)
def product_sizes(subject: Subject, name: str, dtype: str) -> None:
    """Products of matrices and vectors, and gradients of ``linear``, are exact for dimensions of many lengths. The lengths are 1, 2, 17,
    33, 64, 129, 257, 1,025 and 4,099; there are 1, 3 or 80 matrices in a batch. Every pair of lengths of two dimensions is tested, unless
    an operand or the result would then have more than 262,144 elements. In a few other calls, a dimension has length 4,096, 10,007 or
    70,001. The operands are contiguous or transposed, have an offset, or have gaps between their rows. Their elements are -1, 0 and 1. If
    the dimensions are long, most elements are 0, so that every sum is exact in every dtype, in whatever order its terms are added.
    """
    from accelkit_conformance.oracle.product_sizes import check_product_sizes

    check_product_sizes(subject, name, dtype)


@check("full", requires=["dtype.float32"], over=names_of("special_matrices", "NAMES"))
def special_matrices(subject: Subject, name: str) -> None:
    """Linear algebra on matrices with a special structure gives the same results as on the CPU in double precision. Factors, which are not
    unique, are tested by their product, their form and the orthogonality of their rows or columns. If the CPU raises an error because a
    matrix is singular or not positive definite, the device raises a RuntimeError. The matrices are float32 or complex64, and have five rows
    of small integers. They include matrices of zeros or ones, permutation matrices, matrices with a row or a column of zeros or with equal
    blocks, and triangular, nilpotent, negative and diagonal matrices. One diagonal matrix has elements from 1e-15 to 1e15. ``pinv``,
    ``matrix_rank`` and ``slogdet``, whose results for this matrix depend on the dtype, are not called with it. Decompositions, ``pinv`` and
    ``matrix_rank`` are also called with a float32 matrix that has 300 rows and rank 7, and ``eigh`` with one that has 784 rows and rank 7.
    """
    from accelkit_conformance.oracle.special_matrices import check_special_matrices

    check_special_matrices(subject, name)


@check("full", requires=["dtype.{1}"], over=_combined("fft_lengths", "FUNCTIONS", "float32", "float64"))
def fft_lengths(subject: Subject, name: str, dtype: str) -> None:
    """A Fourier transform gives the same results as on the CPU for the lengths 1 to 33 and for 22 lengths up to 65,537, many of which are
    powers of two or prime numbers. The lengths ascend; those above 33 are then tested again in descending order. Three rows and three
    columns are transformed, or one row if the length is above 5,000. For the lengths above 33, a column of a third of the length is also
    padded with zeros and transformed, twice in succession if the length is above 5,000. Transforms of several dimensions are tested with
    five shapes of two to four dimensions, and on some dimensions of three other shapes. The inputs are random. Inverses of real transforms
    ignore the imaginary parts of coefficients that must be real.
    """
    from accelkit_conformance.oracle.fft_lengths import check_lengths

    check_lengths(subject, name, dtype)


@check("full", requires=["dtype.float16", "subnormals"], over=names_of("subnormals", "HALF"))
def half_subnormals(subject: Subject, name: str) -> None:
    """Products, sums, copies and gradients keep all bits of float16 numbers between 2**-24 and 2**-14, which are subnormal. Gradients of
    this magnitude are usual in mixed precision. All results are subnormal, and are exact in whatever order their terms are added. If a
    matrix product or convolution treats these numbers as 0, the result is ``unsupported``."""
    from accelkit_conformance.oracle.subnormals import check_half_subnormals

    check_half_subnormals(subject, name)


_INDICES = _combined("index_expressions", "INDICES", "float32", "int64", "bool", "bfloat16")


@check("full", requires=["dtype.{1}", "dtype.int64", "dtype.int32", "dtype.bool"], over=_INDICES)
def index_expressions(subject: Subject, name: str, dtype: str) -> None:
    """``x[index]`` and ``x[index] = value`` give the same results as on the CPU. The index is an integer, a bool, a slice, a list, a tensor
    of integers, a mask, ``None``, an ellipsis or a combination of these. The value is a number, a 0-d tensor, a row, or a tensor with the
    dtype of ``x``. If the index contains neither tensors nor lists, the value may also be an int32 tensor. If the index consists only of
    tensors, and ``x`` is not a bool tensor, ``index_put_`` with ``accumulate=True`` also gives the same result. The value that it adds is a
    0-d tensor and, if the index does not select from the last dimension, a row or a matrix that is broadcast. ``x`` is contiguous,
    transposed or strided, has its dimensions in the opposite order in memory, or has gaps between its rows. Its shape is (4, 5, 3). A
    float32 ``x`` with its dimensions in the opposite order is also tested with the shape (4, 5, 401).
    """
    from accelkit_conformance.oracle.index_expressions import check_index_expressions

    check_index_expressions(subject, name, dtype)


@check("full", requires=["dtype.int64"], over=names_of("index_functions", "CALLS"))
def index_functions(subject: Subject, name: str) -> None:
    """A function that reads or writes the rows of a matrix by index gives the same results as on the CPU, whatever tensor holds the
    indices. This tensor is int64 or int32. It is 0-d, has one element or none, or contains repeated, descending or negative indices. It is
    strided or expanded, or it is the first row, the second row or a column of a matrix of indices. The matrix that is read or written is
    float32, int64, float16, bool or complex64. Repeated indices write equal values, or their values are added or the largest of them is
    taken. Calls that the CPU rejects, and dtypes that the device lacks, are left out.
    """
    from accelkit_conformance.oracle.index_functions import check_index_functions

    check_index_functions(subject, name)


@check("full", requires=["dtype.{0}", "dtype.int64", "dtype.bool"], over=["uint8", "int8", "int16", "int32", "int64"])
def special_integers(subject: Subject, dtype: str) -> None:
    """Pointwise, copying and indexing operators give the same results as on the CPU for small integers, and for the largest and smallest
    integers of the dtype. In int32 and int64, they also do so for integers that float32 cannot represent. No integer is divided by zero or
    by the smallest integer, and the smallest integer is divided only by 2 and 4."""
    from accelkit_conformance.oracle.special_integers import check_special_integers

    check_special_integers(subject, dtype)


@check("full", requires=["dtype.{0}", "dtype.int64", "dtype.float32"], over=["bool", "uint8", "int8", "int16", "int32"])
def sums_of_small_integers(subject: Subject, dtype: str) -> None:
    """``sum``, ``cumsum``, ``mean`` and similar functions of a matrix with rows of 333 booleans or integers from 0 to 120 give the same
    results as on the CPU. For bool, uint8 and int8, most sums do not fit into the dtype of the matrix. ``prod`` and ``cumprod`` are tested
    with rows of 40 integers that are 1 or 2, and are not tested with bool."""
    from accelkit_conformance.oracle.special_integers import check_sums_of_small_integers

    check_sums_of_small_integers(subject, dtype)


@check("full", requires=["dtype.float32"], over=names_of("factory_arguments", "FACTORIES"))
def factory_arguments(subject: Subject, name: str) -> None:
    """A function that creates a tensor is called twice with the same arguments. Each time, the tensor has the same values, dtype, strides
    and ``requires_grad`` as on the CPU. The arguments include fractional bounds for integer tensors, negative steps, integers up to 2**53,
    empty shapes, sizes of up to 70,001 elements, nested lists, the dtypes float16 and bfloat16, and ``out=`` tensors with gaps between
    their elements."""
    from accelkit_conformance.oracle.factory_arguments import check_factory_arguments

    check_factory_arguments(subject, name)


@check("full", requires=["dtype.float32", "dtype.{0}"], over=["bfloat16", "float16", "float64"])
def default_dtype(subject: Subject, dtype: str) -> None:
    """Functions whose results can depend on the default dtype give results with the same values, dtype, strides and ``requires_grad`` as on
    the CPU. Examples are ``arange`` with float bounds and the division of integers. Each function is called with float32 as the default
    dtype, then with the tested dtype, and then with float32 again."""
    from accelkit_conformance.oracle.factory_arguments import check_default_dtype

    check_default_dtype(subject, dtype)


_PAIRS = (
    "bool,int64", "bool,float32", "uint8,int8", "int32,int64", "int64,float32", "float16,float32", "bfloat16,float32", "float32,float64",
    "float32,complex64",
)  # fmt: skip


@check("full", requires=["dtype.{0}", "dtype.{1}", "dtype.bool"], over=_PAIRS)
def written_dtypes(subject: Subject, first: str, second: str) -> None:
    """Pointwise operators write, either in place or with ``out=``, into a tensor whose dtype differs from that of an argument. The written
    values are the same as on the CPU, and the tensor keeps its dtype. If the CPU raises an error because the result cannot be converted
    to the dtype of the written tensor, the device raises an error, too. Calls that the CPU rejects for another reason are left out.
    """
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
    """For one or two samples of the operator, the results are the same as on the CPU even if operands have the conjugate or the negative
    bit, so that torch conjugates or negates them only when it reads them. For complex64, such operands are results of ``conj()``. For
    float32, they are results of ``conj().imag``. In a first call, all operands of the tested dtype have the bit; in a second call, only
    the last of them has it. Calls that the CPU rejects are left out.
    """
    from accelkit_conformance.oracle.lazy_operands import check_lazy_operands

    check_lazy_operands(subject, name, dtype)


@check("full", requires=["dtype.float32"], over=forward_overloads)
def expanded_arguments(subject: Subject, overload: str) -> None:
    """A call to an ATen overload gives the same results as on the CPU even if the first or the last dimension of one floating-point tensor
    has a stride of 0. Calls that the CPU rejects are left out. So are ``_embedding_bag``, ``_scaled_mm``, ``linalg`` overloads, and
    other factorizations and solvers, such as ``cholesky`` and ``triangular_solve``.
    """
    from accelkit_conformance.oracle.result_strides import check_expanded_arguments

    check_expanded_arguments(subject, overload)


@check("full", requires=["dtype.float32"], over=forward_overloads)
def written_operands(subject: Subject, overload: str) -> None:
    """A call to an ATen overload gives the same results as on the CPU even if one of its arguments is also passed as ``out=``, or if
    several arguments are the same tensor. If several arguments are the same tensor, the in-place form of the call also gives the same
    results. A call that the CPU rejects is left out. If writing the result into an argument changes the result on the CPU, the call is
    left out too. ``linalg``, ``batch_norm`` and a few other overloads are left out.
    """
    from accelkit_conformance.oracle.written_operands import check_written_operands

    check_written_operands(subject, overload)


_CONVERSIONS = (
    "float32,bfloat16", "float32,float16", "float64,float32", "int64,float32", "int32,float32", "int32,bfloat16", "float16,bfloat16",
    "float32,bool", "bfloat16,bool",
)  # fmt: skip


@check("training", requires=["dtype.{0}", "dtype.{1}", "dtype.float32"], over=_CONVERSIONS)
def rounded_conversions(subject: Subject, source: str, target: str) -> None:
    """Conversions to a dtype with fewer digits give exactly the same numbers as on the CPU. The CPU rounds to the nearest number that the
    dtype can represent. If two such numbers are equally near, it rounds to the even one. Numbers beyond the range of a floating-point
    dtype become infinity, and NaN stays NaN. In a conversion to bool, zeros become False, and all other numbers, including NaN, become
    True.
    """
    from accelkit_conformance.oracle.rounded_conversions import check_rounded_conversions

    check_rounded_conversions(subject, source, target)


@check("full", requires=["dtype.{1}"], over=_combined("rounded_conversions", "FLOAT8", "float32", "bfloat16", "float16"))
def float8_conversions(subject: Subject, dtype: str, other: str) -> None:
    """Conversions from and to float8 give exactly the same numbers as on the CPU, with the same signs of zeros. All numbers of the float8
    dtype are converted to the other dtype and back. Three numbers between each pair of neighbouring float8 numbers are rounded to float8.
    Finite numbers beyond the largest number of the float8 dtype, and numbers that are subnormal in the other dtype, are left out. If the
    device raises an error, the conversion is ``unsupported``.
    """
    from accelkit_conformance.oracle.rounded_conversions import check_float8_conversions

    check_float8_conversions(subject, dtype, other)


@check("full", requires=["dtype.float32", "dtype.int64"], over=names_of("many_items", "CALLS"))
def many_items(subject: Subject, name: str) -> None:
    """A call gives the same results as on the CPU even if it has many items to process. Some calls take or return 150 or 300 tensors.
    Others take 65,543 matrices, vectors or batches, 70,003 indices with only 11 different values, 70,003 boundaries, 131,086 rows of
    integers, 1,001 quantiles, 1,000 sections, or 1,048,588 integers with only two different values. A case named ``backward_of_...``
    compares the gradient of the weights. Foreach operators, ``clip_grad_norm_`` and ``clip_grad_value_`` also get 361 tensors of 0 to
    300,000 elements, half of them empty. The foreach operators are also called with 1,000 empty tensors and one with three elements.
    Attention gets 65,544 heads in float16, and 65,543 keys in bfloat16. In the call with many keys, its gradients are compared as well."""
    from accelkit_conformance.oracle.many_items import check_many_items

    check_many_items(subject, name)


@check("full", over=names_of("neutral_elements", "CALLS"))
def neutral_elements(subject: Subject, name: str) -> None:
    """Reductions, scans, sorts and max pooling give the same results as on the CPU for rows of 1 to 5,000 elements in which all elements
    are negative, all are positive, all are the lowest or the highest number of the dtype (infinity in a floating-point dtype), or all are
    NaN. In bool, the rows contain only False or only True. The calls are made along the last and the first dimension of a matrix and, if
    the operator has such a form, over a whole tensor. Such operators are also called with 300,007 elements. Every declared real dtype for
    which the CPU implements the call is tested. Indices may refer to any of several equal elements. The calls ``prod``, ``sum``,
    ``nansum``, ``mean``, ``nanmean``, ``norm``, ``scatter_reduce.prod`` and ``mode`` get the signs of the elements instead of the elements,
    and ``std`` gets the elements divided by 1,000, or 0 instead of infinities and NaN."""
    from accelkit_conformance.oracle.neutral_elements import check_neutral_elements

    check_neutral_elements(subject, name)


@check("full", requires=["dtype.float32"], over=names_of("accumulating_dtypes", "CALLS"))
def accumulating_dtypes(subject: Subject, name: str) -> None:
    """Reductions, scans, softmax functions and norms with ``dtype=`` give the same results as on the CPU, and have the same dtype. The
    input is float16, bfloat16, float32, int8, int32, bool or complex64, and ``dtype=`` is one of five other dtypes (for complex64:
    complex64 or complex128). Many sums, products and squares exceed the range of the input's dtype, but not that of the other dtype, so
    that the device must convert the elements before it adds or multiplies them. The calls are made along the first and the last dimension
    of a matrix, some with ``keepdim=True``, and, if the function has such a form, over the whole matrix. Calls that the CPU rejects, and
    dtypes that the device lacks, are left out."""
    from accelkit_conformance.oracle.accumulating_dtypes import check_accumulating_dtypes

    check_accumulating_dtypes(subject, name)


@check("full", requires=["dtype.complex64"], over=names_of("complex_magnitudes", "FUNCTIONS"))
def complex_magnitudes(subject: Subject, name: str) -> None:
    """For complex64 numbers, a function gives the same results as in complex128 on the CPU, up to a relative error of 1e-5. The numbers are
    0 and numbers of magnitudes from 1e-30 to 1e30. Most of their squares overflow or underflow in float32. Numbers on the branch cuts of
    inverse functions are left out, and so are imaginary numbers for ``tanh``. ``logcumsumexp`` gets numbers with real parts up to 1,000 and
    imaginary parts up to 10,000, and only the real parts of its results are compared. For complex128 numbers of magnitudes from 1e-290 to
    1e290, the relative error is at most 1e-12. Results other than 0 whose absolute values are outside the dtype's range of normal numbers,
    or within a factor of 4 of its limits, are not compared. If the result is 0, the absolute error must be within the same limit.
    """
    from accelkit_conformance.oracle.complex_magnitudes import check_magnitudes

    check_magnitudes(subject, name)


@check("full", requires=["dtype.float64"], over=names_of("precise_numbers", "NUMBERS"))
def precise_numbers(subject: Subject, name: str) -> None:
    """Calls in float64 with Python numbers that float32 cannot represent give the same results as on the CPU. The numbers are operands, or
    arguments such as ``alpha``, ``value`` and ``eps``."""
    from accelkit_conformance.oracle.precise_numbers import check_precise_numbers

    check_precise_numbers(subject, name)


@check("full", requires=["dtype.float16", "dtype.float32"], over=names_of("range_of_float16", "CALLS"))
def range_of_float16(subject: Subject, name: str) -> None:
    """Calls in float16 give the same results as on the CPU even if a Python number, a product or a sum that they use is too large or too
    small for float16. The results themselves are in its range. For example, ``x * 65536`` must be right for small ``x``, so the device must
    not convert the number to float16 first."""
    from accelkit_conformance.oracle.range_of_float16 import check_range_of_float16

    check_range_of_float16(subject, name)


@check("full", over=["uint16", "uint32", "uint64"])
def unsigned_integers(subject: Subject, dtype: str) -> None:
    """Copies, conversions, comparisons, arithmetic and bitwise operators, ``where``, ``cat``, ``sum`` and indexing of unsigned integers
    give the same results as on the CPU. The integers include the largest ones of the dtype. Calls that the CPU rejects are left out. The
    device may raise an error for any of the calls."""
    from accelkit_conformance.oracle.unsigned_integers import check_unsigned_integers

    check_unsigned_integers(subject, dtype)
