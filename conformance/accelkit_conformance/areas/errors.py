"""A user's mistake raises an error of the class that torch documents. The error is raised by the call that contains the mistake or, on an
asynchronous device, no later than when the program waits for the device. After the error, the device still works. NaN and infinity that
arise in a computation raise no error and are kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.areas.operators import forward_overloads
from accelkit_conformance.checks import Case, check
from accelkit_conformance.late_errors import raises

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


def _works(subject: Subject) -> None:
    import torch

    assert (torch.ones(3, device=subject.device) + 1).tolist() == [2.0] * 3, "the device does not work after the error"


@check("smoke")
def shapes_that_do_not_fit(subject: Subject) -> None:
    """Adding, multiplying or concatenating tensors whose shapes do not match raises RuntimeError. So does ``view`` to a shape with a
    different number of elements."""
    import torch

    a, b = torch.ones(2, 3, device=subject.device), torch.ones(4, 5, device=subject.device)
    for name, call in {"add": lambda: a + b, "mm": lambda: a @ b, "cat": lambda: torch.cat([a, b]), "view": lambda: a.view(7)}.items():
        with raises(subject, RuntimeError, doing=f"{name} of tensors that do not fit"):
            call()
    _works(subject)


@check("smoke")
def dtypes_that_do_not_fit(subject: Subject) -> None:
    """``mm``, ``bmm``, ``addmm``, ``linear`` and ``conv1d`` raise RuntimeError if one operand is float32 and the other is int64, int32,
    int8, float16 or bfloat16. ``&`` of two float32 tensors raises RuntimeError or NotImplementedError."""
    import torch
    import torch.nn.functional as F  # the usual name

    a = torch.ones(2, 2, device=subject.device)
    calls: dict[str, Callable[[torch.Tensor], object]] = {
        "mm": lambda other: a @ other,
        "bmm": lambda other: torch.bmm(a[None], other[None]),
        "addmm": lambda other: torch.addmm(a, a, other),
        "linear": lambda other: F.linear(a, other),
        "conv1d": lambda other: F.conv1d(a[None], other[:, :, None]),
    }
    for dtype in (name for name in ("int64", "int32", "int8", "float16", "bfloat16") if not subject.lacks(name)):
        for name, call in calls.items():
            with raises(subject, RuntimeError, doing=f"{name} of float32 and {dtype}"):
                call(torch.ones(2, 2, dtype=getattr(torch, dtype), device=subject.device))
    with raises(subject, RuntimeError, NotImplementedError, doing="a bitwise and of floats"):
        a & a
    _works(subject)


@check("smoke")
def indices_outside(subject: Subject) -> None:
    """For an index that is out of range, ``tensor[index]`` raises IndexError, and ``select`` raises IndexError or RuntimeError. For a
    dimension that does not exist, ``sum`` raises IndexError or RuntimeError."""
    import torch

    a = torch.ones(3, device=subject.device)
    with raises(subject, IndexError, doing="indexing past the end"):
        a[5]
    with raises(subject, IndexError, RuntimeError, doing="a sum over a dimension that does not exist"):
        a.sum(dim=3)
    with raises(subject, IndexError, RuntimeError, doing="selecting past the end"):
        a.select(0, 5)
    _works(subject)


@check("smoke")
def invalid_backward_raises(subject: Subject) -> None:
    """A second backward pass through a freed graph, and a backward pass from a tensor without a graph, raise RuntimeError."""
    import torch

    x = torch.ones(3, device=subject.device, requires_grad=True)
    y = (x * x).sum()
    y.backward()
    with raises(subject, RuntimeError, about="second time", doing="backward through a freed graph"):
        y.backward()
    with raises(subject, RuntimeError, about="grad", doing="backward of a tensor without a graph"):
        torch.ones(1, device=subject.device).backward()
    _works(subject)


@check("smoke")
def changed_in_place(subject: Subject) -> None:
    """A backward pass raises RuntimeError if a tensor that was saved in the forward pass has been changed in place."""
    import torch

    x = torch.ones(3, device=subject.device, requires_grad=True)
    y = x.exp()
    y.add_(1)
    about = "modified by an inplace operation"
    with raises(subject, RuntimeError, about=about, doing="backward through a tensor that was changed in place"):
        y.sum().backward()
    _works(subject)


@check("smoke")
def factorisations_that_fail(subject: Subject) -> None:
    """``cholesky`` of a matrix that is not positive definite and ``inv`` of a singular matrix raise RuntimeError or a subclass, such as
    LinAlgError."""
    import torch

    subject.needs("int32")  # torch's kernels report in this dtype which factorisations failed
    singular = torch.zeros(3, 3, device=subject.device)
    for name, call in {"cholesky": lambda: torch.linalg.cholesky(singular - 1), "inv": lambda: torch.linalg.inv(singular)}.items():
        with raises(subject, RuntimeError, doing=f"linalg.{name} of a matrix that has none"):
            call()
    _works(subject)


@check("training")
def one_matrix_of_a_batch(subject: Subject) -> None:
    """If one matrix of a batch is singular, whichever it is, ``cholesky``, ``inv``, ``solve`` and ``lu_factor`` raise RuntimeError or a
    subclass, such as LinAlgError. ``cholesky_ex`` and ``inv_ex``, if the device has them, return an ``info`` that is nonzero for this
    matrix only."""
    from accelkit_conformance.oracle.invalid_calls import check_batches_of_matrices

    check_batches_of_matrices(subject)
    _works(subject)


@check("full")
def expanded_tensors_are_not_written(subject: Subject) -> None:
    """Several elements of an expanded tensor share memory. An operator that writes different values to these elements, in place or through
    ``out=``, either raises RuntimeError, as on the CPU, or gives every element the correct value."""
    from accelkit_conformance.oracle.invalid_calls import check_expanded_tensors

    check_expanded_tensors(subject)
    _works(subject)


@check("smoke")
def nan_and_infinity_are_kept(subject: Subject) -> None:
    """NaN and infinity that arise in a computation appear in its result and are not replaced by other values."""
    import math

    import torch

    x = torch.tensor([1.0, 0.0, -1.0], device=subject.device)
    for name, value in {
        "0 / 0": (x * 0 / 0)[0],
        "log(-1)": x.log()[2],
        "inf - inf": (x / 0)[0] - (x / 0)[0],
        "sum": (x / 0 * 0).sum(),
    }.items():
        assert math.isnan(value.item()), f"{name} gave {value.item()}, not NaN"
    assert math.isinf((1 / x)[1].item()), "1 / 0 is not infinite"
    assert x.sqrt().cpu().isnan().tolist() == [False, False, True], "the square root of -1 alone is NaN"


@functools.cache
def _operator_of_no_device() -> tuple[Any, torch.library.Library]:
    """Return an operator that no device implements, and the library that defines the operator.

    Both are kept until the process ends. If the library were freed, torch would still list the operator, and torch.compile would fail.
    """
    import torch

    library = torch.library.Library("accelkit_conformance", "FRAGMENT")
    library.define("nowhere(Tensor x) -> Tensor")
    library.impl("nowhere", lambda x: x.clone(), "Meta")
    return torch.ops.accelkit_conformance.nowhere, library


@check("smoke")
def missing_operators_raise(subject: Subject) -> None:
    """Calling an operator that no device implements raises NotImplementedError or RuntimeError with the name of the operator."""
    import torch

    operator, _ = _operator_of_no_device()
    x = torch.ones(2, device=subject.device)  # outside the block: an error here is not the expected error
    with raises(subject, NotImplementedError, RuntimeError, about="nowhere", doing="an operator that no device has"):
        operator(x)
    _works(subject)


@check("training", requires=["numbered_devices"])
def errors_keep_the_current_device(subject: Subject) -> None:
    """If an operator raises an error on a device other than the current one, the current device and the current streams do not change. The
    same is true if ``elapsed_time`` raises an error for events of such a device."""
    from accelkit_conformance.oracle.invalid_calls import check_current_device

    check_current_device(subject)


@check("training", over=["the_cpu", "another_device"])
def operands_on_two_devices(subject: Subject, place: str) -> None:
    """Operators that get one argument on the device and another on the CPU, or on another device of the same type, raise RuntimeError. The
    other argument is an operand, a weight, a bias, the index of an operator such as ``gather``, a mask or the tensor of ``out=``."""
    from accelkit_conformance.oracle.invalid_calls import check_two_devices

    check_two_devices(subject, place)


@check("training", requires=["dtype.int64"], seconds=400.0)
def index_tensors_outside(subject: Subject) -> None:
    """Operators that read or write by index, such as ``gather`` and ``scatter_``, raise an error if a tensor of indices contains an index
    that is out of range: the smallest index beyond the end, the largest before the start, or 2**32. The largest index before the start is
    -1 if torch does not permit negative indices. Many of these operators also raise an error for an index that is beyond the end of a slice
    of a longer tensor, that is out of range along the columns of a matrix, or that is the only invalid one of 42 or 5,000 indices. The
    error is raised no later than when the device is synchronized. The calls run in a separate process, because the error makes some devices
    unusable. A call must not terminate this process. ``linalg.lu_solve``, ``lu_unpack`` and, with torch 2.13 or later, ``linalg.ldl_solve``
    with pivots outside of a matrix do not terminate it either, but need not raise an error. On XLA, the result is ``unsupported``."""
    from accelkit_conformance.oracle.index_errors import check_values

    check_values(subject, "indices")


@check("training", seconds=400.0)
def values_outside(subject: Subject) -> None:
    """Operators raise an error if a tensor contains a value for which they are not defined: a probability of ``bernoulli`` that is not
    between 0 and 1, weights of ``multinomial`` that are negative, not finite or all zero, a negative standard deviation of ``normal``, a
    negative rate of ``poisson``, too few values for ``masked_scatter_``, or a false condition of ``_assert_async``. In some calls, only the
    last of 10,000 values is invalid. The error is raised no later than when the device is synchronized. The calls run in a separate
    process, because the error makes some devices unusable. A call must not terminate this process. On XLA, the result is
    ``unsupported``."""
    from accelkit_conformance.oracle.index_errors import check_values

    check_values(subject, "values")


def _with_invalid_calls() -> Iterator[Case]:
    from accelkit_conformance.oracle.error_inputs import names

    return (("full", (name,)) for name in names())


@check("full", over=_with_invalid_calls)
def invalid_calls(subject: Subject, name: str) -> None:
    """Invalid calls to an operator raise RuntimeError, IndexError, ValueError or TypeError on the device. The calls are those in torch's
    ``op_db`` that raise one of these errors on the CPU, for example because shapes, dimensions or dtypes do not match. If the in-place
    variant raises such an error on the CPU and leaves its argument unchanged, it does the same on the device. The check leaves out calls
    with tensors on several devices, calls with an index or a probability that is out of range, and calls that are invalid only because
    the CPU does not implement a dtype.
    """
    from accelkit_conformance.oracle.error_inputs import check_error_inputs

    check_error_inputs(subject, name)
    _works(subject)


@check("full", requires=["dtype.float32"], over=forward_overloads)
def changed_calls(subject: Subject, overload: str) -> None:
    """A recorded call to an ATen overload is repeated, each time with one argument that is changed and may be invalid: a tensor with
    another dtype, one of the integers 0, -1, -99 and 99, a list that contains such an integer, or a list of integers with another length.
    In one call for each dtype, all floating-point tensors have this dtype. The dtypes are int8, int64, float16, bfloat16, float64, bool and
    complex64. In up to two calls, one tensor has another shape: one dimension is shorter by one element, missing, or added. If both the CPU
    and the ``meta`` device, which implements torch's shape inference, raise RuntimeError, IndexError, ValueError or TypeError, then so does
    the device. If only the CPU raises an error, or if the CPU does not implement a dtype, then the device either accepts the call or raises
    such an error. In further calls, one tensor is on the CPU, or on another device of the same type. Each of these calls raises such an
    error or gives the same results as with all tensors on the device. No call modifies its tensor arguments. The check does not vary the
    integers and shapes of calls that only torch itself makes, and leaves out a few overloads whose CPU kernels do not check their
    arguments.
    """
    from accelkit_conformance.oracle.refused_calls import check_refused_calls

    check_refused_calls(subject, overload)
    _works(subject)


def _modules_with_invalid_calls() -> Iterator[Case]:
    from accelkit_conformance.oracle.error_inputs import names_of_modules

    return (("full", (name,)) for name in names_of_modules())


@check("full", over=_modules_with_invalid_calls)
def invalid_calls_of_modules(subject: Subject, name: str) -> None:
    """Calls to a module with invalid arguments raise RuntimeError, IndexError, ValueError or TypeError on the device. The calls are those
    in torch's ``module_db`` that raise one of these errors on the CPU. The check leaves out calls with an index or a probability that is
    out of range, and calls that are invalid only because the CPU does not implement a dtype.
    """
    from accelkit_conformance.oracle.error_inputs import check_module_errors

    check_module_errors(subject, name)
    _works(subject)


@check("full", over=["draws", "sizes", "numbers"])
def invalid_arguments(subject: Subject, kind: str) -> None:
    """Invalid calls raise RuntimeError, IndexError, ValueError or TypeError, and do not change the values of their tensor argument. In the
    case ``draws``, samplers get invalid parameters, dtypes or shapes. In the case ``sizes``, functions that create, view, copy, assign,
    read, index or change tensors get invalid sizes, strides, shapes or dtypes, or a tensor that does not permit the call. In the same case,
    products, normalisations, losses, embedding bags and recurrent cells get an argument with one element or row instead of several;
    transposed convolutions get an ``output_padding`` that is not smaller than their stride; and ``fold`` gets too few blocks. In the case
    ``numbers``, ``full``, ``fill_``, ``masked_fill``, ``pad``, ``clamp`` and similar functions get a number that is too large for the
    dtype, which is int8, uint8, int16, int32 or float16. Calls that return a result on the CPU are left out."""
    from accelkit_conformance.oracle import error_inputs

    error_inputs.check_invalid_calls(subject, getattr(error_inputs, f"INVALID_{kind.upper()}"))
    _works(subject)


@check("full", requires=["dtype.float32"])
def changes_are_noticed(subject: Subject) -> None:
    """Calls that write to a tensor, directly or through a view, increase the tensor's version counter. Examples of such calls are in-place
    random sampling, copies, assignments and operators with ``out=``. If the tensor was saved for a backward pass, this pass raises
    RuntimeError. Calls that write nothing leave the version counter unchanged."""
    from accelkit_conformance.oracle.versions import check_versions

    check_versions(subject)
    _works(subject)
