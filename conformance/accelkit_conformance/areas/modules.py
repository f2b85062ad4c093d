"""Every module of torch.nn gives the same results on the device as on the CPU: outputs, gradients of parameters and inputs, and buffers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import Case, check
from accelkit_conformance.subject import assert_on_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SMOKE = (
    "Linear",
    "Conv2d",
    "BatchNorm2d",
    "LayerNorm",
    "Embedding",
    "GELU",
    "CrossEntropyLoss",
    "MultiheadAttention",
    "LSTM",
    "MaxPool2d",
)
_STAGES = 2
"""The number of operators whose errors add up: most modules call at least two, one after the other, in the forward and the backward
pass."""
_MORE_STAGES = {"MultiheadAttention": 5, "RNN": 8, "GRU": 8, "LSTM": 8}
"""The number for modules that call more operators: attention computes three products and a softmax, and recurrent modules repeat their
operators in each time step."""


def _modules() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name in opdb.modules():
        yield "smoke" if name in _SMOKE else "training", (name,)


@check("training", requires=["dtype.float32"], over=_modules)
def module(subject: Subject, name: str) -> None:
    """In training mode and in evaluation mode, the outputs, the buffers and the gradients have the right values and are on the device. The
    backward pass starts from a random gradient for each output. The values of modules that draw random numbers are not compared."""
    from accelkit_conformance.oracle import opdb
    from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes

    info = opdb.modules()[name]
    lacking: set[str] = set()
    is_any_possible = False
    for training in (True, False):
        for number, given in enumerate(opdb.module_inputs(info, training=training)[: subject.most_samples]):
            missing = lacking_dtypes(subject, lambda: _run_on_cpu(info, given))  # noqa: B023
            lacking |= set(missing)
            if missing:
                continue
            is_any_possible = True
            facts = {"training": training, "number": number, "args": given.constructor_input.args, "kwargs": given.constructor_input.kwargs}
            with subject.sample(f"{'training' if training else 'evaluation'}, case {number}", facts):
                _compare(subject, info, given, training, f"{name}[{training},{number}]")
    if not is_any_possible:
        subject.needs(*lacking)


def _run_on_cpu(info: Any, given: Any) -> Any:
    """Run a module on the CPU with the input ``given``, and return the module's state, arguments and results.

    The check ``module`` runs this function to find the dtypes that a module needs. If the device lacks one of these dtypes, the check skips
    this input.

    If an argument of the module's constructor is a float64 tensor, the module is not created, and only the constructor's arguments are
    returned. If ``given`` has no forward input, the module is created but not called, and only its state is returned.
    """
    import torch

    from accelkit_conformance.oracle.sample_transfer import tensors

    arguments = given.constructor_input
    if any(one.dtype is torch.float64 for one in tensors((arguments.args, arguments.kwargs))):
        return arguments.args, arguments.kwargs  # FractionalMaxPool, which the check computes in double
    module = info.module_cls(*arguments.args, **arguments.kwargs)
    if given.forward_input is None:
        return list(module.state_dict().values())
    call = (given.forward_input.args, given.forward_input.kwargs)
    return list(module.state_dict().values()), call, _run(module, call, "")


def _compare(subject: Subject, info: Any, given: Any, training: bool, seed: str) -> None:
    import torch

    from accelkit.runtime.comparison.tolerance import relative_error
    from accelkit_conformance.oracle.sample_transfer import tensors, to_device, to_double
    from accelkit_conformance.oracle.tolerance import check_form, check_result

    torch.default_generator.manual_seed(0)
    arguments = given.constructor_input
    here = info.module_cls(*arguments.args, **arguments.kwargs)
    here.train(training)
    there = copy.deepcopy(here).to(subject.device)
    subject.assert_on_device(*there.parameters(), *there.buffers())
    if given.forward_input is None:
        return
    call = (given.forward_input.args, given.forward_input.kwargs)
    if any(one.dtype is torch.float64 for one in tensors((arguments.args, arguments.kwargs))):
        here, call = here.double(), to_double(call)  # FractionalMaxPool, whose random samples are given in double
        there = copy.deepcopy(here).to(subject.device)
    try:
        double = copy.deepcopy(here).double()
        truth: dict[str, list[Any]] | None = _run(double, to_double(call), seed)
    except Exception:  # the module does not support double: compare with the CPU's own result
        truth = None
    state = torch.default_generator.get_state()
    reference = _run(here, to_device(call, torch.device("cpu")), seed)
    is_random = not torch.equal(state, torch.default_generator.get_state())
    found = _run(there, to_device(call, subject.device), seed)
    subject.compute()
    stages = _MORE_STAGES.get(info.module_cls.__name__, _STAGES)
    for part, expected in reference.items():
        assert len(found[part]) == len(expected), f"{part}: {len(found[part])}, not {len(expected)}"
        true = truth[part] if truth is not None and len(truth[part]) == len(expected) else [None] * len(expected)
        others = max((relative_error(*one) for one in zip(expected, true, strict=True) if one[0] is not None), default=0.0)
        for mine, theirs, exact in zip(found[part], expected, true, strict=True):
            assert (mine is None) == (theirs is None), f"{part}: one exists on only one of the device and the CPU"
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


def _run(module: Any, call: Any, seed: str) -> dict[str, list[Any]]:
    import torch

    from accelkit.runtime.comparison.cotangents import cotangents
    from accelkit_conformance.oracle.sample_transfer import tensors

    outputs = tensors(module(*call[0], **call[1]))
    wanted = [one for one in [*module.parameters(), *tensors(call)] if one.requires_grad and one.is_leaf]
    differentiable = [one for one in outputs if one.requires_grad]
    gradients: tuple[Any, ...] = ()
    if wanted and differentiable:
        gradients = torch.autograd.grad(differentiable, wanted, cotangents(differentiable, seed), allow_unused=True)
    return {"outputs": [one.detach() for one in outputs], "gradients": list(gradients), "buffers": list(module.buffers())}


@check("smoke")
def to_moves_everything(subject: Subject) -> None:
    """``Module.to`` moves parameters, buffers and gradients to the device, and ``to("cpu")`` moves them back; no value changes."""
    import torch

    from accelkit_conformance.oracle.layers import batch_norm

    def everything() -> list[torch.Tensor]:
        gradients = [one.grad for one in layer.parameters() if one.grad is not None]
        return [*layer.parameters(), *layer.buffers(), *gradients]

    layer = torch.nn.Sequential(torch.nn.Linear(3, 3), batch_norm(subject, 3))
    layer(torch.randn(4, 3)).square().mul(torch.arange(3.0)).sum().backward()
    before = [one.detach().clone() for one in everything()]
    for device in (subject.device, torch.device("cpu")):
        layer.to(device)
        assert len(everything()) == len(before), f"a gradient was lost on the way to {device}"
        assert_on_device(device, *everything())
        assert all(one.requires_grad and one.is_leaf for one in layer.parameters()), (
            f"a parameter that was moved to {device} is not a leaf that requires a gradient"
        )
        assert all(torch.equal(one.detach().cpu(), old) for one, old in zip(everything(), before, strict=True)), (
            f"a value changed on the way to {device}"
        )


@check("training")
def to_empty_from_meta(subject: Subject) -> None:
    """``to_empty`` allocates memory on the device for a module that was created on ``meta``, and ``reset_parameters`` initialises the
    module on the device."""
    import torch

    with torch.device("meta"):
        layer = torch.nn.Linear(20, 30)
    layer.to_empty(device=subject.device)
    layer.reset_parameters()
    subject.assert_on_device(layer.weight, layer.bias)
    assert 0 < layer.weight.std().item() < 1
