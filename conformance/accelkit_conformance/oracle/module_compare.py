"""Run a module on the CPU, on the CPU in double precision and on the device, and compare outputs, gradients and buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit.runtime.comparison.cotangents import cotangents
from accelkit.runtime.comparison.tolerance import relative_error
from accelkit_conformance.oracle.sample_transfer import tensors, to_device, to_double
from accelkit_conformance.oracle.tolerance import check_form, check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a call."""

_STAGES = 2
"""The number of operators whose errors add up. Most modules call at least two, one after the other, in the forward and the backward
pass."""
_MORE_STAGES = {"MultiheadAttention": 5, "SelfAttention": 5, "RNN": 8, "GRU": 8, "LSTM": 8}
"""The value that is used instead of ``_STAGES`` for modules that call more operators, by class. Attention computes three products and a
softmax, and recurrent modules repeat their operators in each time step."""


def compare_module(
    subject: Subject, make: Callable[[], torch.nn.Module], call: Arguments | None, *, training: bool, seed: str, is_double: bool = False
) -> None:
    """Compare a module's outputs, buffers and gradients on the device with those on the CPU.

    In evaluation mode, the module is also called under ``torch.no_grad``, where torch uses different kernels for some modules.

    Args:
        subject: The plugin under test, with its device.
        make: A function that creates the module on the CPU.
        call: The arguments of the forward pass, on the CPU. If None, the module is only moved to the device.
        training: Whether the module is in training mode.
        seed: The seed of the random output gradients.
        is_double: Whether the module can only be called in double precision.

    Raises:
        AssertionError: If a result differs, or if a parameter or buffer is not on the device after the move. The values of a module that
            draws random numbers are not compared.
    """
    torch.default_generator.manual_seed(0)
    here = make()
    here.train(training)
    there = copy.deepcopy(here).to(subject.device)
    subject.assert_on_device(*there.parameters(), *there.buffers())
    if call is None:
        return
    if is_double:
        here, call = here.double(), to_double(call)
        there = copy.deepcopy(here).to(subject.device)
    if not training:
        with torch.no_grad():
            compare_modules(subject, copy.deepcopy(here), copy.deepcopy(there), call, seed=seed)
    compare_modules(subject, here, there, call, seed=seed)


def compare_modules(subject: Subject, here: Any, there: Any, call: Arguments, *, seed: str) -> None:
    """Call a module on the CPU (``here``) and the same module on the device (``there``), and compare outputs, gradients and buffers.

    The arguments ``call`` and ``seed``, and the errors, are those of ``compare_module``.
    """
    is_low = any(one.dtype in (torch.bfloat16, torch.float16) for one in here.parameters())  # in which 8 eps is 0.8 to 6 %
    stages = 1 if is_low else _MORE_STAGES.get(type(here).__name__, _STAGES)
    try:
        double = copy.deepcopy(here).double()
        truth: dict[str, list[Any]] | None = run_module(double, to_double(call), seed)
    except Exception:  # the module does not support double: compare with the CPU's own result
        truth = None
    state = torch.default_generator.get_state()
    reference = run_module(here, to_device(call, torch.device("cpu")), seed)
    is_random = not torch.equal(state, torch.default_generator.get_state())
    found = run_module(there, to_device(call, subject.device), seed)
    subject.compute()
    for part, expected in reference.items():
        assert len(found[part]) == len(expected), f"the device gave {len(found[part])} {part}, not {len(expected)}"
        true = truth[part] if truth is not None and len(truth[part]) == len(expected) else [None] * len(expected)
        others = max((relative_error(*one) for one in zip(expected, true, strict=True) if one[0] is not None), default=0.0)
        for mine, theirs, exact in zip(found[part], expected, true, strict=True):
            assert (mine is None) == (theirs is None), f"{part}: an entry is None on the device or on the CPU, but not on both"
            if theirs is None:
                continue
            try:
                if is_random:
                    check_form(mine, theirs, subject.device)
                else:
                    check_result(mine, theirs, exact, subject.device, cancels=True, others=others, num_stages=stages)
            except AssertionError as error:
                raise AssertionError(f"{part}: {error}") from error
    assert not is_random or tensors(found["outputs"])


def run_module(module: Any, call: Arguments, seed: str) -> dict[str, list[Any]]:
    """Run a forward pass and, if gradients are recorded, a backward pass that starts from random output gradients.

    Returns:
        The ``outputs``, the ``gradients`` of the parameters and of the arguments, and the ``buffers`` after the passes.
    """
    outputs = tensors(module(*call[0], **call[1]))
    wanted = [one for one in [*module.parameters(), *tensors(call)] if one.requires_grad and one.is_leaf]
    differentiable = [one for one in outputs if one.requires_grad]
    gradients: tuple[Any, ...] = ()
    if wanted and differentiable:
        gradients = torch.autograd.grad(differentiable, wanted, cotangents(differentiable, seed), allow_unused=True)
    return {"outputs": [one.detach() for one in outputs], "gradients": list(gradients), "buffers": list(module.buffers())}
