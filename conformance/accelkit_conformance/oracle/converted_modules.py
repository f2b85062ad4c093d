"""Checks of modules and tensors that are used on the device in float32 and then converted there to another dtype and back."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name
from torch import nn
from torch.utils._pytree import tree_map

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.module_compare import Arguments, compare_modules, run_module
from accelkit_conformance.oracle.sample_transfer import tensors
from accelkit_conformance.oracle.tolerance import check_form

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Conversion = Callable[[Any], Any]

_SEQUENCES: Sequence[tuple[tuple[str, str, _Conversion], ...]] = (
    (
        ("to(torch.bfloat16)", "bfloat16", lambda module: module.to(torch.bfloat16)),
        ("float()", "float32", lambda module: module.float()),
        ("to(torch.float16)", "float16", lambda module: module.to(torch.float16)),
        ("to(torch.float32)", "float32", lambda module: module.to(torch.float32)),
    ),
    (
        ("bfloat16()", "bfloat16", lambda module: module.bfloat16()),
        ("to(torch.float32)", "float32", lambda module: module.to(torch.float32)),
        ("half()", "float16", lambda module: module.half()),
        ("float()", "float32", lambda module: module.float()),
    ),
)
"""Sequences of conversions. Each conversion has a description, the name of its dtype, and a function."""


def check_converted_module(subject: Subject, name: str) -> None:
    """Call a module in float32, convert it several times, call it after each conversion, and compare all results with those on the CPU.

    The first input of torch's database is used in training mode, and the last input in evaluation mode. Differences are recorded in the
    subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the module in ``opdb.modules()``.
    """
    info = opdb.modules()[name]
    inputs = opdb.module_inputs(info, 2, training=True)
    for training, (number, given), sequence in zip((True, False), (inputs[0], inputs[-1]), _SEQUENCES, strict=True):
        made, called = given.constructor_input, given.forward_input
        if called is None or any(one.dtype is torch.float64 for one in tensors((made.args, made.kwargs))):
            continue
        torch.default_generator.manual_seed(0)
        here = info.module_cls(*made.args, **made.kwargs).train(training)
        call, done = (called.args, called.kwargs), f"case {number}, {'training' if training else 'evaluation'}, float32"
        if not _is_possible(subject, here, call):
            continue
        there = _prepare(here, subject.device)
        for description, dtype, convert in (("", "float32", lambda module: module), *sequence):
            arguments = _converted(call, dtype)
            is_declared = dtype == "float32" or subject.capabilities.can(f"dtype.{dtype}")
            if not is_declared or not _is_possible(subject, convert(copy.deepcopy(here)), arguments):
                continue
            done += f", {description}" if description else ""
            with subject.sample(done, {"dtype": dtype, "training": training, "number": number}):
                here, there = convert(here), convert(there)
                _check_state(here, there, subject.device)
                compare_modules(subject, here, there, arguments, seed=f"{name}[{number}]")
            with torch.no_grad():
                for mine, theirs in zip(there.buffers(), here.buffers(), strict=True):
                    mine.copy_(theirs)  # so that the rounding errors of several calls do not add up


def _prepare(here: Any, device: torch.device) -> Any:
    """Round the parameters of a module, and return a copy of the module on the device. Also set ``grad`` of the parameters of both modules,
    to the same values.

    After the rounding, no parameter is subnormal in float16. Some devices treat subnormal numbers as 0.
    """
    with torch.no_grad():
        for parameter in here.parameters():
            parameter.copy_((parameter * 4096).round() / 4096)
    there = copy.deepcopy(here).to(device)
    for mine, theirs in zip(there.parameters(), here.parameters(), strict=True):
        theirs.grad = theirs.detach() * 2
        mine.grad = theirs.grad.to(device, copy=True)
    return there


def _is_possible(subject: Subject, module: Any, call: Arguments) -> bool:
    """Return whether the CPU supports a call to a module, and the device has the dtypes that the call needs."""

    def program() -> Any:
        return list(module.state_dict().values()), call, run_module(module, call, "")

    state = torch.default_generator.get_state()
    try:
        return not lacking_dtypes(subject, program) and bool(program())
    except (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False
    finally:
        torch.default_generator.set_state(state)


def _converted(call: Arguments, dtype: str) -> Arguments:
    """Return the arguments of a call with all floating-point tensors in ``dtype``."""

    def convert(one: Any) -> Any:
        is_changed = isinstance(one, torch.Tensor) and one.is_floating_point()
        return one.detach().to(opdb.dtype_of(dtype)).requires_grad_(one.requires_grad) if is_changed else one

    converted: Arguments = tree_map(convert, call)
    return converted


def _check_state(here: nn.Module, there: nn.Module, device: torch.device) -> None:
    """Check that both modules have parameters and gradients with the same dtypes and values, and buffers with the same dtypes."""
    mine, theirs = (dict(module.named_parameters()) for module in (there, here))
    for name, expected in theirs.items():
        for what, found, right in ((name, mine[name], expected), (f"{name}.grad", mine[name].grad, expected.grad)):
            assert right is not None
            check_form(found, right, device)
            assert found is not None
            assert torch.equal(found.detach().cpu(), right.detach()), f"{what} has other values than on the CPU"
    for found, right in zip(there.buffers(), here.buffers(), strict=True):
        check_form(found, right, device)


class _WithWeight(nn.Module):
    """A module that calls a function with a weight."""

    def __init__(self, function: Callable[..., torch.Tensor], weight: torch.Tensor) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(weight)

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        return self.function(self.weight, *arguments)


_FUNCTIONS: Mapping[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "weight[rows]": lambda w, x, rows: w[rows],
    "weight[0]": lambda w, x, rows: w[0] * 2,
    "index_select": lambda w, x, rows: w.index_select(0, rows),
    "gather": lambda w, x, rows: w.gather(0, rows[:, None]),
    "embedding": lambda w, x, rows: F.embedding(rows, w),
    "embedding_bag": lambda w, x, rows: F.embedding_bag(rows[None], w, mode="mean"),
    "matmul": lambda w, x, rows: x @ w.t(),
    "mv": lambda w, x, rows: torch.mv(w, x[0]),
    "addmm": lambda w, x, rows: torch.addmm(w[:, 0], x, w.t()),
    "linear": lambda w, x, rows: F.linear(x, w),
    "conv1d": lambda w, x, rows: F.conv1d(x[None], w[:, :3, None]),
    "layer_norm": lambda w, x, rows: F.layer_norm(x, x.shape[1:], w[0]),
    "group_norm": lambda w, x, rows: F.group_norm(x.t()[None], 2, w[0]),
    "softmax": lambda w, x, rows: w.softmax(-1),
    "add": lambda w, x, rows: w + w,
    "sum": lambda w, x, rows: w.sum(0),
}
_WAYS: Mapping[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "to": lambda w, dtype: w.to(dtype),
    "to of a tensor": lambda w, dtype: w.to(torch.zeros(1, dtype=dtype, device=w.device)),
    "type": lambda w, dtype: w.type(dtype),
    "a method": lambda w, dtype: {torch.bfloat16: w.bfloat16, torch.float16: w.half, torch.float32: w.float}[dtype](),
    "copy_": lambda w, dtype: torch.empty_like(w, dtype=dtype).copy_(w),
}


def check_converted_tensors(subject: Subject) -> None:
    """Compare the results and gradients of functions of a weight with those on the CPU, before and after the weight is converted.

    The weight is converted to bfloat16 or float16, and then back to float32. Differences are recorded in the subject.
    """
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(5, 4, generator=generator), torch.randn(3, 4, generator=generator)
    rows = torch.tensor([4, 0, 4])
    for name, function in _FUNCTIONS.items():

        def compare(pair: Sequence[torch.Tensor], dtype: str, title: str, name: str = name, function: Any = function) -> None:
            call = _converted(((x, rows), {}), dtype)
            here, there = (_WithWeight(function, one) for one in pair)
            if _is_possible(subject, here, call):
                with subject.sample(title, {"name": name, "dtype": dtype}):
                    compare_modules(subject, here, there, call, seed=name)

        first = (weight, weight.to(subject.device))
        compare(first, "float32", f"{name}, float32")
        for dtype, (way, convert) in itertools.product(("bfloat16", "float16"), _WAYS.items()):
            if subject.capabilities.can(f"dtype.{dtype}"):
                low = [convert(one, opdb.dtype_of(dtype)) for one in first]
                compare(low, dtype, f"{name}, {dtype} by {way}")
                compare([convert(one, torch.float32) for one in low], "float32", f"{name}, {dtype} and float32 by {way}")
