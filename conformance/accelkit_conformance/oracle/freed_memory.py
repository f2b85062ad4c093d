"""Checks that memory is freed: by operators, after errors, by storages that shrink, and when shapes vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes, possible_samples
from accelkit_conformance.oracle.module_compare import run_module
from accelkit_conformance.oracle.op_compare import place
from accelkit_conformance.oracle.places import run_at
from accelkit_conformance.oracle.sample_transfer import tensors, to_device
from accelkit_conformance.profiles.operators import CORE
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_BYTES = 8 << 20
_PETABYTE = 1 << 50
_WIDTH = 256
_LENGTHS = range(100, 124)
_NUM_FIRST_LENGTHS = 8
_MOST_GROWTH = 1 << 20


def check_operator(subject: Subject, name: str) -> None:
    """Check that three runs of an operator, each with forward and backward passes, do not leave more and more memory allocated.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the operator in torch's ``op_db``.

    Raises:
        AssertionError: If more memory is allocated after the third run than after the first.
        Exception: The error of the operator, if the first run of an operator in ``CORE`` fails, or if a later run of any operator fails. If
            the first run of any other operator fails, this function returns, because other tests report the error.
    """
    op = opdb.operators()[name]
    has_gradients = opdb.supports(op, "float32", backward=True)
    samples = list(possible_samples(subject, op, opdb.samples(op, "float32", 2, requires_grad=has_gradients)))

    def call() -> float:
        for sample in samples:
            there = place(op, (sample.input, sample.args, sample.kwargs), subject.device)
            results = op(there[0], *there[1], **there[2])
            outputs = [one for one in tensors(sample.output_process_fn_grad(results)) if one.requires_grad] if has_gradients else []
            if outputs:
                sum(one.abs().sum() for one in outputs).backward()  # type: ignore[union-attr]
            del there, results, outputs
        subject.synchronize()
        return subject.allocated()

    try:
        first = call()
    except Exception:
        if name in CORE:
            raise
        return  # tests of operators report the error
    _check_repeated(subject, call, first)


def check_module(subject: Subject, name: str) -> None:
    """Check that four runs of a module, each with forward and backward passes, do not leave more and more memory allocated.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the module in torch's ``module_db``.

    Raises:
        AssertionError: If more memory is allocated after the fourth run than after the second. The first run may leave garbage that is
        freed later. If the first run raises an error, this function returns, because other tests report the error.
    """
    info = opdb.modules()[name]
    ((_, sample),) = opdb.module_inputs(info, 1, training=True)
    arguments, forward = sample.constructor_input, sample.forward_input
    if forward is None:
        return
    given = (forward.args, forward.kwargs)

    def make() -> torch.nn.Module:
        made: torch.nn.Module = info.module_cls(*arguments.args, **arguments.kwargs)
        return made

    subject.needs(*lacking_dtypes(subject, lambda: (list(make().state_dict().values()), run_module(make(), given, name))))
    module = make().to(subject.device)

    def call() -> float:
        run_module(module, to_device(given, subject.device), name)
        subject.synchronize()
        return subject.allocated()

    try:
        call()
    except Exception:
        return
    _check_repeated(subject, call, call())


def _check_repeated(subject: Subject, call: Callable[[], float], first: float) -> None:
    """Check that ``call``, which returns the number of allocated bytes, does not return more than ``first`` after two more calls."""
    call()
    if call() > first:
        left = subject.allocated_after(first) - first  # collecting garbage is slow
        assert left <= 0, f"{left:.0f} more bytes are allocated after two more calls"


def check_failed_allocations(subject: Subject) -> None:
    """Check that an allocation for which there is not enough memory raises ``torch.OutOfMemoryError`` and changes nothing.

    Raises:
        AssertionError: If there is no error or a different one, if a tensor changes, if the allocated bytes or their peak increase, or if
            the tensor of the next allocation has wrong values.
    """
    is_counted = subject.capabilities.can("memory_statistics")

    def statistics() -> dict[str, float]:
        return subject.accelerator.memory_stats(subject.device) if is_counted else {}

    kept = torch.arange(100.0, device=subject.device)
    if is_counted:
        subject.allocated_before()  # frees garbage: if it were freed later, an increase could be missed
        subject.accelerator.reset_peak_memory_stats(subject.device)
    before = statistics()
    for _ in range(2):
        with raises(subject, torch.OutOfMemoryError, doing="allocating a petabyte", may_be_absent=True):
            torch.empty(_PETABYTE // 4, dtype=torch.float32, device=subject.device)
    after = statistics()
    assert kept.tolist() == list(range(100)), "a tensor changed when memory ran out"
    for name, what in {"memory.allocated.bytes": "number of allocated bytes", "memory.peak.bytes": "peak of allocated bytes"}.items():
        was, now = (stats.get(name, 0.0) for stats in (before, after))
        assert now <= was, f"attempts to allocate a petabyte increased the {what} from {was:.0f} to {now:.0f}"
    assert torch.ones(1000, device=subject.device).sum().item() == 1000


def check_threads(subject: Subject) -> None:
    """Check that memory is freed in a thread other than the main thread, and that the main thread can free a tensor of another thread.

    The other thread creates and frees tensors three times. Then it creates a tensor that the main thread frees.

    Raises:
        AssertionError: If more memory is allocated after the third time than after the first, or if the memory of the last tensor stays
            allocated after the main thread has freed that tensor.
    """
    levels: list[float] = []

    def run() -> list[torch.Tensor]:
        subject.accelerator.setup_device(subject.device)
        for _ in range(3):
            one = torch.ones(_BYTES // 4, device=subject.device)
            other = one + one
            subject.synchronize()
            del one, other
            levels.append(subject.allocated())
        if levels[-1] > levels[0]:
            levels.append(subject.allocated_after(levels[0]))
        return [torch.ones(_BYTES // 4, device=subject.device)]

    tensors_of_thread = run_at(subject, "another thread", subject.device, run)
    growth = levels[-1] - levels[0]
    assert growth <= 0, f"{growth:.0f} more bytes are allocated after tensors were created and freed in a thread for the third time"
    held = subject.allocated()
    tensors_of_thread.clear()
    left = subject.allocated()
    if left > held - _BYTES:
        left = subject.allocated_after(held - _BYTES)  # collecting garbage is slow
    assert left <= held - _BYTES, (
        f"the main thread freed {_BYTES} bytes of another thread, but the number of allocated bytes decreased by only {held - left:.0f}"
    )


def check_operators_without_memory(subject: Subject) -> None:
    """Check that a call for which there is not enough memory raises ``torch.OutOfMemoryError`` and keeps no memory.

    The calls are an operator whose result does not fit into memory, and a backward pass in which a custom function runs out of memory.

    Raises:
        AssertionError: If a call changes its input, or if more memory is allocated after two rounds of calls than before. Memory is
            compared only if the device has the capability ``memory_statistics``.
        Absent: If a call raises no error.
        WrongError: If a call raises a different error.
    """

    def run_out() -> None:
        x = torch.ones(1 << 20, device=subject.device)
        with raises(subject, torch.OutOfMemoryError, doing="an outer product of 4 TiB", may_be_absent=True):
            torch.outer(x, x)
        with raises(subject, torch.OutOfMemoryError, doing="a backward pass that allocates a petabyte", may_be_absent=True):
            _RunsOut.apply((x.requires_grad_() * 2).exp()).exp().sum().backward()
        assert x.sum().item() == 1 << 20, "the input of a call changed when memory ran out"
        assert x.grad is None, "a backward pass that ran out of memory gave a gradient"

    run_out()
    if not subject.capabilities.can("memory_statistics"):
        run_out()
        return
    before = subject.allocated_before()
    for _ in range(2):
        run_out()
    left = subject.allocated_after(before) - before
    assert left <= 0, f"{left:.0f} bytes stay allocated after calls ran out of memory, although their inputs have been freed"


class _RunsOut(torch.autograd.Function):
    """The identity, whose backward pass allocates a petabyte."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return torch.empty(_PETABYTE // 4, dtype=torch.float32, device=gradients[0].device)


def check_resized_storages(subject: Subject) -> None:
    """Check that a storage that is resized to 0 bytes frees its memory, and that it can be resized to its former size.

    Raises:
        AssertionError: If the memory stays allocated, or if the storage has no memory after it is resized to its former size.
        NotSupported: If the device does not implement the resizing of storages.
    """
    before = subject.allocated_before()
    x = torch.ones(_BYTES // 4, device=subject.device)
    storage = x.untyped_storage()
    for value in (2.0, 3.0):
        try:
            storage.resize_(0)
        except NotImplementedError as error:
            raise NotSupported("storages on the device cannot be resized") from error
        left = subject.allocated_after(before) - before
        assert left <= 0, f"{left:.0f} bytes stay allocated after a storage was resized from {_BYTES} bytes to 0"
        storage.resize_(_BYTES)
        grown = subject.allocated() - before
        assert _BYTES <= grown <= 2 * _BYTES, f"a storage was resized from 0 to {_BYTES} bytes, but {grown:.0f} are counted"
        x.fill_(value)
        assert x.mean().item() == value, "a tensor whose storage was resized does not have the values with which it was filled"


def check_varying_shapes(subject: Subject) -> None:
    """Check that a model does not keep memory for each sequence length if the length differs at each step.

    Raises:
        AssertionError: If the allocated memory grows by 1 MiB or more after the steps with the first eight lengths.
    """
    convolution = torch.nn.Conv1d(_WIDTH, _WIDTH, 3, padding=1, device=subject.device)
    layers = torch.nn.Sequential(torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.LayerNorm(_WIDTH), torch.nn.GELU()).to(subject.device)

    def run(length: int) -> None:
        x = layers(convolution(torch.ones(1, _WIDTH, length, device=subject.device)).transpose(1, 2))
        heads = x.view(1, length, 4, -1).transpose(1, 2)
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).mean().backward()
        for one in (convolution, layers):
            one.zero_grad()

    def allocated() -> float:
        subject.synchronize()
        subject.accelerator.empty_cache()
        return subject.allocated_before()

    for length in _LENGTHS[:_NUM_FIRST_LENGTHS]:
        run(length)
    first = allocated()
    for length in _LENGTHS[_NUM_FIRST_LENGTHS:]:
        run(length)
    growth = allocated() - first
    num_more = len(_LENGTHS) - _NUM_FIRST_LENGTHS
    assert growth < _MOST_GROWTH, f"{growth:.0f} more bytes are allocated after steps with {num_more} other lengths, and after empty_cache"


def check_failed_calls(subject: Subject, name: str) -> None:
    """Check that the inputs and intermediate results of a call are freed after the call raises an error.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the call in ``_FAILING``.

    Raises:
        AssertionError: If the call raises no error, or if more than 64 KiB stay allocated after it.
    """
    call = _FAILING[name]
    for width in (8, 8, 1024):  # with small tensors, the device first allocates what it allocates only once, such as a workspace
        before = subject.allocated_before()
        with raises(subject, RuntimeError, IndexError, ValueError, ZeroDivisionError, doing=name):
            call(torch.ones(width, width, device=subject.device))
    left = subject.allocated_after(before) - before
    assert left <= 1 << 16, f"{left:.0f} bytes stay allocated after {name} of a matrix of {4 * width * width} bytes has failed"


def _fail_in_a_hook(x: torch.Tensor) -> None:
    middle = x.requires_grad_() * 2
    middle.register_hook(lambda gradient: 1 / 0)
    middle.sum().backward()


_FAILING: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "matmul": lambda x: (x * 2) @ (x[1:] * 2),
    "cat": lambda x: torch.cat([x * 2, x[:, 1:] * 2]),
    "view": lambda x: (x * 2).view(7, 7),
    "add": lambda x: (x * 2) + (x[1:] * 2),
    "select": lambda x: (x * 2).select(0, len(x)),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x * 2, (7,)),
    "hook": _fail_in_a_hook,
}
"""Calls that raise an error, by name. Each takes a square matrix with at least eight rows."""
