"""Run a sample of an operator on the CPU, on the CPU in double precision and on the device, and compare the results."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accelkit.runtime.comparison.cotangents import cotangents
from accelkit.runtime.comparison.tolerance import UNINITIALIZED, is_equal_choice, relative_error
from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.aliasing import check_aliasing
from accelkit_conformance.oracle.changed_arguments import check_inputs
from accelkit_conformance.oracle.conditioning import differ_by_rounding, with_rounding_errors
from accelkit_conformance.oracle.factorizations import check_factors, unique_parts
from accelkit_conformance.oracle.known_differences import are_as_frequent, is_left_out, may_be_missing
from accelkit_conformance.oracle.sample_transfer import tensors, to_device, to_double
from accelkit_conformance.oracle.tolerance import check_form, check_result
from accelkit_conformance.oracle.used_memory import leave_nan
from accelkit_conformance.results import WrongValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from accelkit_conformance.subject import Subject

# Operators for which only the input is moved to the device. tensor_split takes its split points on the CPU, whatever the device.
_HOST_ARGUMENTS = ("tensor_split",)


def place(op: Any, given: Any, device: torch.device) -> Any:
    """Return the sample ``given``, which is ``(input, args, kwargs)``, with its tensors copied to the device.

    If the sample contains neither a tensor nor an argument ``device``, ``device`` is added to its keyword arguments, unless the operator is
    in ``opdb.NO_TENSORS``. If the operator is in ``_HOST_ARGUMENTS``, only the input is copied.
    """
    if not tensors(given) and "device" not in given[2] and op.name not in opdb.NO_TENSORS:
        return given[0], given[1], {**given[2], "device": device}
    if op.name in _HOST_ARGUMENTS:
        return to_device(given[0], device), given[1], given[2]
    return to_device(given, device)


def compare_forward(
    subject: Subject,
    op: Any,
    given: Any,
    variant: Callable[..., Any] | None = None,
    expected: Callable[..., Any] | None = None,
    *,
    is_variant: bool = False,
    inputs_stay: bool = False,
) -> None:
    """Run the operator on ``(input, args, kwargs)`` on the CPU and on the device, and compare every leaf of the results.

    Values are not compared if the call draws random numbers or returns uninitialised memory.

    If ``variant`` is None, each result must also share memory with the same arguments as on the CPU (see :func:`check_aliasing`).

    Args:
        subject: The plugin under test, with its device.
        op: The OpInfo of the operator.
        given: The sample, as ``(input, args, kwargs)``.
        variant: The function to run on the device instead of the operator, such as its in-place or ``out=`` variant. It must return
            what the operator returns on the CPU.
        expected: The function to run on the CPU instead of the operator.
        is_variant: If True, or if ``variant`` is given, a sample that raises an error on the CPU is not compared.
        inputs_stay: If True, each argument that the CPU leaves unchanged, and the memory around it, must stay unchanged on the device.

    Raises:
        AssertionError: If the results differ.
    """
    expected = expected or op
    try:
        is_random = variant is not None and _on_cpu(op, variant, to_device(given, torch.device("cpu")))[1]
        here = to_device(given, torch.device("cpu"))
        reference, draws = _on_cpu(op, expected, here)
    except Exception:
        if not is_variant and variant is None:
            raise
        return
    there = place(op, given, subject.device)
    leave_nan(subject, subject.device, reference)
    with may_be_missing(op, given):
        found = flat((variant or op)(there[0], *there[1], **there[2]))
    if inputs_stay:
        check_inputs(there, here, given)
    assert len(found) == len(reference), f"gave {len(found)} results, not {len(reference)}"
    if variant is None:
        check_aliasing(found, reference, there, here)
    if is_random or draws or op.name in UNINITIALIZED:
        for mine, theirs in zip(found, reference, strict=True):
            if isinstance(theirs, torch.Tensor):
                check_form(mine, theirs, subject.device)
        return
    truth = truth_of(expected, given, reference)
    found, reference, truth = (unique_parts(op.name, leaves) for leaves in (found, reference, truth))
    triples = enumerate(zip(found, reference, truth, strict=True))
    leaves = [one for index, one in triples if not is_left_out(op.name, index, one[0], one[1])]
    check_results(op, given, leaves, subject.device, strides=variant is None and opdb.is_pointwise(op))
    check_factors(op.name, given[0], found)


def check_results(
    op: Any, given: Any, leaves: Iterable[tuple[Any, Any, Any]], device: torch.device, *, overload: str = "", **options: Any
) -> None:
    """Check the leaves of an operator's results with :func:`check_result`, which receives ``options``.

    If the operator may choose among equal values or is discontinuous, a result that differs from the CPU's still passes if it is equally
    correct.

    Args:
        op: The OpInfo of the operator.
        given: The arguments, as ``(input, args, kwargs)``.
        leaves: For each leaf, a tuple of three values: the device's result, the CPU's result, and the CPU's result in double precision.
            The third value may be None.
        device: The device on which the results must be.
        overload: The name of the ATen overload that was called. Empty if no overload was called directly.

    Raises:
        AssertionError: If a result is wrong.
    """
    phase = op.name in opdb.UP_TO_PHASE or overload in opdb.UP_TO_PHASE
    is_tolerant = op.name in opdb.CHOOSES_AMONG_EQUALS or op.name in opdb.DISCONTINUOUS
    is_sensitive = opdb.is_sensitive(overload or opdb.full_name(op))
    for mine, theirs, true in leaves:
        try:
            check_result(mine, theirs, true, device, phase=phase, is_sensitive=is_sensitive, **options)
        except AssertionError:
            if not is_tolerant or not _is_as_good(op, mine, theirs, given):
                raise


def compare_backward(
    subject: Subject,
    op: Any,
    sample: Any,
    given: Any,
    *,
    variant: Callable[..., Any] | None = None,
    expected: Callable[..., Any] | None = None,
    compared: torch.dtype | None = None,
) -> bool:
    """Compare the gradients of all inputs that require a gradient. Return False if there are no gradients to compare.

    The output gradients are random, with one exception: they are all ones if the operator (for example ``max``) may choose among equal
    elements of the input, and the first input that requires a gradient has equal elements.

    Args:
        subject: The plugin under test, with its device.
        op: The OpInfo of the operator.
        sample: The sample.
        given: The arguments of the sample, as ``(input, args, kwargs)``.
        variant: The function to run on the device instead of the operator.
        expected: The function to run on the CPU instead of the operator.
        compared: The dtype to which the gradients are rounded before they are compared. It is needed if the gradients were computed with
            less precision than their dtype has. If None, they are not rounded.

    Raises:
        AssertionError: If the gradients differ.
        NotSupported: If the device does not support the call, and PyTorch implements it only for the CPU.
    """
    expected = expected or op
    there = place(op, given, subject.device)
    with watching_draws(op) as draws:
        reference = _gradients(op, expected, sample, to_device(given, torch.device("cpu")))
    is_random = draws.are_seen
    if not reference:
        return False
    with may_be_missing(op, given):
        found = _gradients(op, variant or op, sample, there)
    subject.compute()
    truth: list[Any] = [None] * len(reference)
    if not is_random:
        with contextlib.suppress(Exception):  # the operator does not support double: compare with the CPU's own result
            computed = _gradients(op, expected, sample, to_double(given))
            truth = computed if len(computed) == len(reference) else truth
    assert len(found) == len(reference), f"{len(found)} inputs have a gradient, not {len(reference)}"
    others = max((relative_error(*one) for one in zip(reference, truth, strict=True) if one[0] is not None), default=0.0)
    for number, (mine, theirs, true) in enumerate(zip(found, reference, truth, strict=True)):
        assert (mine is None) == (theirs is None), "an input has a gradient on the device or on the CPU, but not on both"
        if theirs is None:
            continue
        if is_random or compared is not None:
            check_form(mine, theirs, subject.device)
        if not is_random:
            mine, theirs = (one if compared is None else one.to(compared) for one in (mine, theirs))  # noqa: PLW2901
            options: dict[str, Any] = {"phase": op.name in opdb.UP_TO_PHASE, "cancels": True, "others": others}
            options["is_sensitive"] = opdb.is_sensitive(opdb.full_name(op))
            try:
                check_result(mine, theirs, true, subject.device, **options)
            except WrongValues:
                if theirs.dtype not in (torch.float64, torch.complex128):
                    raise
                changed = _gradients(op, expected, sample, with_rounding_errors(given))[number]
                if not differ_by_rounding(changed, theirs):
                    raise
                check_result(mine, changed, theirs, subject.device, **options)
    return True


def _on_cpu(op: Any, call: Any, given: Any) -> tuple[list[Any], bool]:
    """Call ``call`` with the sample ``given`` on the CPU. Return the leaves of the results, and whether the call drew random numbers.

    ``call`` is the operator ``op`` or a variant of it.
    """
    with watching_draws(op) as draws:
        results = flat(call(given[0], *given[1], **given[2]))
    return results, draws.are_seen


class _Draws(TorchDispatchMode):
    """Dispatch mode that sets ``are_seen`` to True if an ATen operator with the tag ``nondeterministic_seeded`` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.are_seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.are_seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def watching_draws(op: Any) -> Iterator[_Draws]:
    """Context manager that detects whether calls to the operator inside the block draw random numbers on the CPU.

    For most operators, the state of the CPU's generator after the block is compared with the state before the block. Some of torch's
    OpInfos seed the generator and restore its state (``wrapper_set_seed``), so this comparison would find nothing. For these OpInfos, a
    dispatch mode detects calls to ATen operators with the tag ``nondeterministic_seeded``.
    """
    draws = _Draws()
    code = getattr(getattr(op, "op", op), "__code__", None)
    if code is not None and "wrapper_set_seed" in code.co_names:
        with draws:
            yield draws
        return
    before = torch.default_generator.get_state()
    yield draws
    draws.are_seen = not torch.equal(before, torch.default_generator.get_state())


def truth_of(call: Any, given: Any, reference: list[Any]) -> list[Any]:
    """Return the CPU's results in double precision, one for each entry of ``reference``.

    A result that is not a dense tensor with the same shape as the entry is replaced by None.

    All results are None if no entry has a floating-point or complex dtype with less precision than double. They are also None if the call
    in double precision fails, or if the number of its results differs from the number of entries.
    """
    is_low = any(
        leaf.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32) for leaf in tensors(reference)
    )
    if not is_low:
        return [None] * len(reference)
    try:
        given = to_double(given)
        found = flat(call(given[0], *given[1], **given[2]))
    except Exception:  # the operator does not support double: compare with the CPU's own result
        return [None] * len(reference)
    if len(found) != len(reference):
        return [None] * len(reference)
    return [
        true if isinstance(true, torch.Tensor) and true.layout is torch.strided and true.shape == getattr(theirs, "shape", None) else None
        for true, theirs in zip(found, reference, strict=True)
    ]


def _gradients(op: Any, call: Callable[..., Any], sample: Any, given: Any) -> list[Any]:
    results = call(given[0], *given[1], **given[2])
    outputs = [leaf for leaf in tensors(sample.output_process_fn_grad(results)) if leaf.requires_grad]
    inputs = [leaf for leaf in tensors(given) if leaf.requires_grad]
    if not outputs or not inputs:
        return []
    if op.name in opdb.CHOOSES_AMONG_EQUALS and _has_equals(inputs[0]):
        return list(torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs], allow_unused=True))
    return list(torch.autograd.grad(outputs, inputs, cotangents(outputs, f"{opdb.full_name(op)}[{sample.name}]"), allow_unused=True))


def _has_equals(values: torch.Tensor) -> bool:
    """Return whether any two elements are equal. If so, ``topk``, for example, may choose either, and the chosen one gets the gradient."""
    return values.detach().cpu().unique().numel() < values.numel()


def _is_as_good(op: Any, mine: Any, theirs: torch.Tensor, given: Any) -> bool:
    """Return whether a result that differs from the CPU's is equally correct.

    A result is equally correct if the device has chosen other elements of equal value (for ``mode``, of equal frequency). The result of a
    discontinuous operator in float16 or bfloat16 is equally correct if fewer than 5% of its elements differ, each by at most one step. A
    step is 1, or the second argument of the operator if this argument is larger.
    """
    there = mine.cpu()
    if op.name in opdb.DISCONTINUOUS:
        if theirs.dtype not in (torch.bfloat16, torch.float16):
            return False
        off = (there.double() - theirs.double()).abs()
        step = given[1][0] if given[1] else 1.0
        size = float(step.abs().max()) if isinstance(step, torch.Tensor) else abs(float(step)) if isinstance(step, int | float) else 1.0
        return float((off > 0).double().mean()) < 0.05 and float(off.max()) <= max(1.0, size) * 1.01
    if op.name == "mode" and theirs.dtype == given[0].dtype:
        return are_as_frequent(given[0], there, theirs)
    return is_equal_choice(given[0], there, theirs)


def flat(results: Any) -> list[Any]:
    """Return the leaves of nested results."""
    return list(tree_leaves(results))
