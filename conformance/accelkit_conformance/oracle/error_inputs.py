"""Invalid calls, for which a device must raise an error, as the CPU does. They are calls to operators and modules from torch's ``op_db``
and ``module_db``, calls to samplers with invalid arguments, and calls with invalid sizes, strides, shapes, dtypes or numbers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.op_compare import place
from accelkit_conformance.oracle.programs import integers
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import tensors, to_device
from accelkit_conformance.oracle.single_elements import SINGLE_ELEMENTS

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

ERRORS = (RuntimeError, IndexError, ValueError, TypeError)
# Errors that depend on the values of a tensor are left out: many devices find them only in a kernel, and cannot be used afterwards. The
# check ``errors/index_tensors_outside`` makes such calls in a separate process. Errors about an operator that is not implemented for a
# dtype are left out too, because the device may implement the operator for that dtype.
LEFT_OUT = re.compile(r"index \S+ is out of (range|bounds)|probability|not implemented for")


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of the operators for which ``_invalid_calls`` yields at least one call."""
    return tuple(
        name for name, op in opdb.operators().items() if op.error_inputs_func is not None and any(True for _ in _invalid_calls(op))
    )


def _invalid_calls(op: Any) -> Iterator[Any]:
    """Yield the arguments of each call in the operator's ``error_inputs`` that raises one of ``ERRORS`` on the CPU.

    Calls with tensors on several devices are left out. So are calls whose error is a NotImplementedError or matches ``LEFT_OUT``.
    """
    torch.default_generator.manual_seed(0)
    for invalid in op.error_inputs("cpu"):
        sample = invalid.sample_input
        given = (sample.input, sample.args, sample.kwargs)
        if any(one.is_meta for one in tensors(given)):  # calls with tensors on several devices
            continue
        args, kwargs = _copied(given)
        try:
            op(*args, **kwargs)
        except ERRORS as error:
            if not LEFT_OUT.search(str(error)) and not isinstance(error, NotImplementedError):
                yield given
        except Exception:  # noqa: S112 # no device has to raise an error of this class
            continue


def _copied(given: Any) -> Any:
    first, args, kwargs = to_device(given, torch.device("cpu"))
    return (first, *args), kwargs


def check_error_inputs(subject: Subject, name: str) -> None:
    """Check that the invalid calls to an operator raise an error on the device, as they do on the CPU.

    A failure is recorded in the subject if a call raises no error or an error of a class not in ``ERRORS``, or if an in-place call raises
    an error but changes its argument. Calls with tensors of a dtype that the device lacks are skipped.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the operator in torch's ``op_db``.
    """
    op = opdb.operators()[name]
    for given in _invalid_calls(op):
        dtypes = {str(one.dtype).removeprefix("torch.") for one in tensors(given)}
        if any(map(subject.lacks, dtypes)):
            continue
        description = describe_sample(given)
        with subject.sample(description, facts_of(given, "float32")):
            first, args, kwargs = place(op, given, subject.device)
            with raises(subject, *ERRORS, doing=f"{name} of {description}"):
                op(first, *args, **kwargs)
            if _fails_in_place(op, given):
                first, args, kwargs = place(op, given, subject.device)
                kept = first.cpu().clone()
                with raises(subject, *ERRORS, doing=f"{name} in place of {description}"):
                    op.inplace_variant(first, *args, **kwargs)
                is_kept = torch.equal(torch.nan_to_num(first.cpu()), torch.nan_to_num(kept))
                assert is_kept, f"{name} in place of {description} raised an error, but changed its argument"


def _fails_in_place(op: Any, given: Any) -> bool:
    """Return whether the in-place variant of an operator, called with ``given``, raises an error on the CPU and leaves its first argument
    unchanged. Errors that ``LEFT_OUT`` matches do not count, and neither does NotImplementedError."""
    if op.inplace_variant is None or not isinstance(given[0], torch.Tensor) or "out" in given[2]:
        return False
    (first, *args), kwargs = _copied(given)
    kept = first.clone()
    try:
        op.inplace_variant(first, *args, **kwargs)
    except ERRORS as error:
        is_same = first.shape == kept.shape and torch.equal(torch.nan_to_num(first), torch.nan_to_num(kept))
        return is_same and not LEFT_OUT.search(str(error)) and not isinstance(error, NotImplementedError)
    return False


@functools.cache
def names_of_modules() -> tuple[str, ...]:
    """Return the names of the modules for which torch's ``module_db`` has calls with invalid arguments."""
    return tuple(name for name, info in opdb.modules().items() if any(True for _ in _invalid_modules(info)))


def _invalid_modules(info: Any) -> Iterator[tuple[Any, tuple[Any, Any]]]:
    """Yield modules on the CPU, each with arguments for which it raises an error.

    Errors that ``LEFT_OUT`` matches do not count, and neither does NotImplementedError.
    """
    if info.module_error_inputs_func is None:
        return
    torch.default_generator.manual_seed(0)
    for one in info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True):
        built, called = one.module_error_input.constructor_input, one.module_error_input.forward_input
        if "FORWARD" not in one.error_on.name:
            continue
        module = info.module_cls(*built.args, **built.kwargs)
        try:
            module(*called.args, **called.kwargs)
        except ERRORS as error:
            if not LEFT_OUT.search(str(error)) and not isinstance(error, NotImplementedError):
                yield module, (called.args, called.kwargs)


def check_module_errors(subject: Subject, name: str) -> None:
    """Check that a module raises an error on the device for arguments that torch's ``module_db`` lists as invalid.

    A failure is recorded in the subject if a call raises no error or an error of a class not in ``ERRORS``. Calls with tensors of a dtype
    that the device lacks are skipped.
    """
    for module, given in _invalid_modules(opdb.modules()[name]):
        description = describe_sample((None, *given))
        if any(subject.lacks(str(one.dtype).removeprefix("torch.")) for one in tensors(given)):
            continue
        with subject.sample(description, {"name": name}):
            args, kwargs = to_device(given, subject.device)
            there = module.to(subject.device)
            with raises(subject, *ERRORS, doing=f"{name} of {description}"):
                there(*args, **kwargs)


_Call = Callable[[torch.Tensor], Any]


def _filled(dtype: torch.dtype, fill: _Call) -> _Call:
    return lambda x: fill(torch.zeros(5, dtype=dtype, device=x.device))


INVALID_DRAWS: dict[str, _Call] = {
    "normal_ with a negative deviation": lambda x: x.normal_(0, -1),
    "normal with a negative deviation": lambda x: torch.normal(0.0, -1.0, (3,), device=x.device),
    "normal of a tensor with a negative deviation": lambda x: torch.normal(x, -1.0),
    "uniform_ with the bounds exchanged": lambda x: x.uniform_(3, 2),
    "exponential_(0)": lambda x: x.exponential_(0),
    "exponential_(-1)": lambda x: x.exponential_(-1),
    "geometric_(0)": lambda x: x.geometric_(0),
    "geometric_(1.5)": lambda x: x.geometric_(1.5),
    "cauchy_ with a negative scale": lambda x: x.cauchy_(0, -1),
    "log_normal_ with a negative deviation": lambda x: x.log_normal_(0, -1),
    "bernoulli_(1.5)": lambda x: x.bernoulli_(1.5),
    "bernoulli_(-0.5)": lambda x: x.bernoulli_(-0.5),
    "random_ of no number": lambda x: x.random_(5, 5),
    "random_ with the bounds exchanged": lambda x: x.random_(7, 3),
    "random_ above the dtype": _filled(torch.uint8, lambda x: x.random_(0, 300)),
    "random_ below the dtype": _filled(torch.int8, lambda x: x.random_(-200, 3)),
    "randint of no number": lambda x: torch.randint(5, 5, (3,), device=x.device),
    "randint with the bounds exchanged": lambda x: torch.randint(7, 3, (3,), device=x.device),
    "randperm of a negative number": lambda x: torch.randperm(-1, device=x.device),
    "multinomial of too many": lambda x: torch.multinomial(x, 5),
    "multinomial of no sample": lambda x: torch.multinomial(x, 0),
    "multinomial of integers": lambda x: torch.multinomial(x.to(torch.int64), 1),
    "multinomial of three dimensions": lambda x: torch.multinomial(x.view(1, 2, 2), 1),
    "dropout(1.5)": lambda x: F.dropout(x, 1.5),
    "dropout of integers": lambda x: F.dropout(x.to(torch.int64), 0.5),
    "normal_ of integers": _filled(torch.int64, lambda x: x.normal_()),
    "uniform_ of integers": _filled(torch.int64, lambda x: x.uniform_()),
    "exponential_ of integers": _filled(torch.int64, lambda x: x.exponential_()),
    "cauchy_ of integers": _filled(torch.int64, lambda x: x.cauchy_()),
    "log_normal_ of integers": _filled(torch.int64, lambda x: x.log_normal_()),
    "bernoulli of integers": lambda x: torch.bernoulli(x.to(torch.int64)),
    "rand of integers": lambda x: torch.rand(3, dtype=torch.int64, device=x.device),
    "randn of integers": lambda x: torch.randn(3, dtype=torch.int64, device=x.device),
    "bernoulli_ with a shape that does not fit": lambda x: x.bernoulli_(torch.full((3,), 0.5, device=x.device)),
    "normal of shapes that do not fit": lambda x: torch.normal(x, torch.ones(3, device=x.device)),
}
"""Calls to samplers with invalid arguments, by name. Each is called with a tensor of four ones."""


INVALID_SIZES: dict[str, _Call] = {
    "empty of a negative size": lambda x: torch.empty(-3, device=x.device),
    "zeros of a negative size": lambda x: torch.zeros(2, -3, device=x.device),
    "rand of a negative size": lambda x: torch.rand(-3, device=x.device),
    "full of a negative size": lambda x: torch.full((2, -1), 1.0, device=x.device),
    "new_empty of a negative size": lambda x: x.new_empty(-1),
    "empty of 2**63 bytes": lambda x: torch.empty(2**61, dtype=torch.float32, device=x.device),
    "empty of 2**64 bytes": lambda x: torch.empty(2**62, dtype=torch.float32, device=x.device),
    "empty of 2**64 + 4 bytes": lambda x: torch.empty(2**31 + 1, 2**31, dtype=torch.float32, device=x.device),
    "empty of 2**66 bytes": lambda x: torch.empty(2**32, 2**32, dtype=torch.float32, device=x.device),
    "empty_strided of 2**64 bytes": lambda x: torch.empty_strided((2, 2), (2**61, 1), device=x.device),
    "empty_strided of a negative stride": lambda x: torch.empty_strided((2, 2), (-1, 1), device=x.device),
    "as_strided beyond the storage": lambda x: x.as_strided((3, 3), (3, 1)),
    "as_strided before the storage": lambda x: x.as_strided((2,), (1,), -1),
    "as_strided of a negative stride": lambda x: x.as_strided((2,), (-1,), 3),
    "view of another number of elements": lambda x: x.view(3),
    "view that crosses strides": lambda x: x.view(2, 2).t().view(4),
    "view of a dtype that does not fit": lambda x: x[:3].view(torch.float64),
    "expand of a dimension that is not 1": lambda x: x.expand(3),
    "unflatten into other sizes": lambda x: x.unflatten(0, (3, 2)),
    "arange of wrong sign": lambda x: torch.arange(3, 1, 1, device=x.device),
    "arange of step 0": lambda x: torch.arange(3, 5, 0, device=x.device),
    "linspace of negative steps": lambda x: torch.linspace(0, 1, -2, device=x.device),
    "eye of a negative size": lambda x: torch.eye(-2, device=x.device),
    "repeat of a negative number": lambda x: x.repeat(-1),
    "split of a negative size": lambda x: x.split(-1),
    "split of sizes that do not fit": lambda x: x.split([1, 2]),
    "narrow beyond the end": lambda x: x.narrow(0, 2, 3),
    "unfold beyond the end": lambda x: x.unfold(0, 5, 1),
    "select of a dimension that does not exist": lambda x: x.select(2, 0),
    "permute of too few dimensions": lambda x: x.view(2, 2).permute(0),
    "permute of a dimension twice": lambda x: x.view(2, 2).permute(0, 0),
    "squeeze of a dimension that does not exist": lambda x: x.squeeze(3),
    "copy_ of a shape that does not fit": lambda x: x.copy_(torch.ones(3)),
    "copy_ of a device tensor that does not fit": lambda x: x.copy_(torch.ones(3, device=x.device)),
    "copy_ to the host of a shape that does not fit": lambda x: torch.ones(3).copy_(x),
    "an assignment that does not fit": lambda x: x.__setitem__(slice(0, 2), torch.ones(3)),
    "a mask that does not fit": lambda x: x[torch.ones(3, device=x.device) > 0],
    "index_put of values that do not fit": lambda x: x.index_put((integers(x, 3, 2, 1, 0),), x[:3]),
    "index_add_ of too few values": lambda x: x.index_add_(0, integers(x, 3, 2, 1), x[:2] * 3),
    "index_copy_ of too few values": lambda x: x.index_copy_(0, integers(x, 3, 2, 1), x[:2] * 3),
    "index_select with a matrix of indices": lambda x: x.index_select(0, integers(x, 3, 2).view(1, 2)),
    "index_fill_ of several values": lambda x: x.index_fill_(0, integers(x, 3), x[:2] * 3),
    "put_ of too few values": lambda x: x.put_(integers(x, 3, 2, 1), x[:2] * 3),
    "gather with indices of other dimensions": lambda x: x.gather(0, integers(x, 3, 2).view(1, 2)),
    "scatter_ of too few values": lambda x: x.scatter_(0, integers(x, 3, 2, 1), x[:2] * 3),
    **SINGLE_ELEMENTS,
    "conv_transpose1d with too much output_padding": lambda x: F.conv_transpose1d(x.view(1, 1, 4), x[:3].view(1, 1, 3), output_padding=1),
    "conv_transpose2d with too much output_padding": lambda x: F.conv_transpose2d(*[x.view(1, 1, 2, 2)] * 2, output_padding=1),
    "conv_transpose3d with too much output_padding": lambda x: F.conv_transpose3d(*[x.view(1, 1, 1, 2, 2)] * 2, output_padding=1),
    "fold of too few blocks": lambda x: F.fold(x.view(1, 4, 1).repeat(1, 1, 9), (4, 5), 2),
    "repeat_interleave of too few numbers": lambda x: x.repeat_interleave(integers(x, 3, 2, 1)),
    "masked_fill_ with a mask that does not fit": lambda x: x.masked_fill_(x[:3] > 0, 3.0),
    "item of several elements": lambda x: x.item(),
    "bool of several elements": bool,
    "float of no element": lambda x: float(x[:0]),
    "an index of float": lambda x: x[x],
    "histc with the bounds exchanged": lambda x: torch.histc(x, 4, 3, 1),
    "out= of another dtype": lambda x: torch.add(x, x, out=torch.zeros(4, dtype=torch.int32, device=x.device)),
    "in place into another dtype": lambda x: x.to(torch.int32).add_(0.5),
    "in place into a smaller shape": lambda x: x.add_(torch.ones(2, 4, device=x.device)),
    "numpy of a tensor that requires a gradient": lambda x: x.requires_grad_().numpy(),
    "in place on a leaf": lambda x: x.requires_grad_().add_(1),
    "deepcopy of a result": lambda x: x.requires_grad_().mul(2).__deepcopy__({}),
}
"""Calls with invalid sizes, strides, shapes or dtypes, and other calls that torch refuses, by name. Each is called with a tensor of four
ones."""


_TOO_LARGE = {torch.int8: 300, torch.uint8: 300, torch.int16: 70_000, torch.int32: 2**40, torch.float16: 1_000_000}
INVALID_NUMBERS: dict[str, _Call] = {
    f"{name} of {str(dtype).removeprefix('torch.')}": _filled(dtype, lambda x, call=call, number=number: call(x, number))  # type: ignore[misc]
    for name, call in {
        "full": lambda x, number: torch.full((3,), number, dtype=x.dtype, device=x.device),
        "full_like": torch.full_like,
        "fill_": lambda x, number: x.fill_(number),
        "masked_fill": lambda x, number: x.masked_fill(x == 0, number),
        "index_fill": lambda x, number: x.index_fill(0, torch.tensor([0]).to(x.device), number),
        "scatter": lambda x, number: x.scatter(0, torch.tensor([0]).to(x.device), number),
        "pad": lambda x, number: F.pad(x, (1, 1), value=number),
        "clamp": lambda x, number: x.clamp(max=number),
        "random_": lambda x, number: x.random_(0, number),
        "randint": lambda x, number: torch.randint(0, number, (3,), dtype=x.dtype, device=x.device),
    }.items()
    for dtype, number in _TOO_LARGE.items()
    if (name, dtype) != ("clamp", torch.float16)  # CUDA accepts this bound
}
"""Calls with numbers above the range of the dtype of their tensors, by name. Each is called with a tensor of four ones, from which only the
device is taken."""


def check_invalid_calls(subject: Subject, calls: dict[str, _Call]) -> None:
    """Check that calls raise an error on the device, and leave their argument unchanged. Failures are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        calls: ``INVALID_DRAWS``, ``INVALID_SIZES`` or ``INVALID_NUMBERS``. Calls that need a dtype that the device lacks are left out,
            and so are calls that return a result on the CPU, such as ``clamp`` with torch 2.15.
    """
    for name, call in calls.items():
        x = torch.ones(4, device=subject.device)
        with subject.sample(name, {"name": name}):
            if lacking_dtypes(subject, lambda call=call: _result(call)) or _result(call) is not None:  # type: ignore[misc]
                continue
            with raises(subject, *ERRORS, doing=name):
                call(x)
            assert x.tolist() == [1.0] * 4, f"{name} raised an error, but changed its argument to {x.tolist()}"


def _result(call: _Call) -> Any:
    """Return the result of a call on the CPU, or None if the call raises an error."""
    try:
        return call(torch.ones(4))
    except ERRORS:
        return None
