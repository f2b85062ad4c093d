"""Every module of torch.nn, moved to the device, gives there what it gives on the CPU: outputs, gradients of parameters and inputs,
buffers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import Case, check

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


def _modules() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name in opdb.modules():
        yield "smoke" if name in _SMOKE else "training", (name,)


@check("training", requires=["dtype.float32"], over=_modules)
def module(subject: Subject, name: str) -> None:
    """In training and in evaluation: outputs, gradients and buffers are right, and on the device."""
    from accelkit_conformance.oracle import opdb

    info = opdb.modules()[name]
    for training in (True, False):
        for number, given in enumerate(opdb.module_inputs(info, training=training)[: subject.most_samples]):
            facts = {"training": training, "number": number, "args": given.constructor_input.args, "kwargs": given.constructor_input.kwargs}
            with subject.sample(f"{'training' if training else 'evaluation'}, case {number}", facts):
                _compare(subject, info, given, training)


def _compare(subject: Subject, info: Any, given: Any, training: bool) -> None:
    import torch

    from accelkit_conformance.oracle.sample_transfer import tensors, to_device, to_double
    from accelkit_conformance.oracle.tolerance import check_form, check_result, relative_error

    torch.default_generator.manual_seed(0)
    arguments = given.constructor_input
    here = info.module_cls(*arguments.args, **arguments.kwargs)
    here.train(training)
    there = copy.deepcopy(here).to(subject.device)
    subject.stays(*there.parameters(), *there.buffers())
    if given.forward_input is None:
        return
    call = (given.forward_input.args, given.forward_input.kwargs)
    if any(one.dtype is torch.float64 for one in tensors((arguments.args, arguments.kwargs))):
        here, call = here.double(), to_double(call)  # FractionalMaxPool: the samples that it is given are in double
        there = copy.deepcopy(here).to(subject.device)
    try:
        double = copy.deepcopy(here).double()
        truth: dict[str, list[Any]] | None = _run(double, to_double(call))
    except Exception:  # a module that has no double: the CPU's own result is what there is
        truth = None
    state = torch.default_generator.get_state()
    reference = _run(here, to_device(call, torch.device("cpu")))
    is_random = not torch.equal(state, torch.default_generator.get_state())
    found = _run(there, to_device(call, subject.device))
    subject.compute()
    for part, expected in reference.items():
        assert len(found[part]) == len(expected), f"{part}: {len(found[part])}, not {len(expected)}"
        true = truth[part] if truth is not None and len(truth[part]) == len(expected) else [None] * len(expected)
        others = max((relative_error(*one) for one in zip(expected, true, strict=True) if one[0] is not None), default=0.0)
        for mine, theirs, exact in zip(found[part], expected, true, strict=True):
            assert (mine is None) == (theirs is None), f"{part}: one is there, and on the CPU it is not, or the other way round"
            if theirs is None:
                continue
            try:
                if is_random:
                    check_form(mine, theirs, subject.device)
                else:
                    check_result(mine, theirs, exact, subject.device, cancels=True, others=others)
            except AssertionError as error:
                raise AssertionError(f"{part}: {error}") from error
    assert not is_random or tensors(found["outputs"])


def _run(module: Any, call: Any) -> dict[str, list[Any]]:
    import torch

    from accelkit_conformance.oracle.sample_transfer import tensors

    outputs = tensors(module(*call[0], **call[1]))
    wanted = [one for one in [*module.parameters(), *tensors(call)] if one.requires_grad and one.is_leaf]
    differentiable = [one for one in outputs if one.requires_grad]
    gradients: tuple[Any, ...] = ()
    if wanted and differentiable:
        gradients = torch.autograd.grad(differentiable, wanted, [torch.ones_like(one) for one in differentiable], allow_unused=True)
    return {"outputs": [one.detach() for one in outputs], "gradients": list(gradients), "buffers": list(module.buffers())}


@check("smoke")
def to_moves_everything(subject: Subject) -> None:
    """``Module.to`` moves parameters, buffers and gradients, and nothing of the module stays behind; ``to("cpu")`` brings it back."""
    import torch

    layer = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    layer(torch.ones(2, 3)).sum().backward()
    layer.to(subject.device)
    subject.stays(*layer.parameters(), *layer.buffers(), *(one.grad for one in layer.parameters() if one.grad is not None))
    assert all(one.requires_grad and one.is_leaf for one in layer.parameters()), (
        "a parameter that was moved is no leaf that requires gradients"
    )
    assert {one.device.type for one in layer.to("cpu").parameters()} == {"cpu"}


@check("training")
def to_empty_from_meta(subject: Subject) -> None:
    """A module made on ``meta`` gets memory on the device by ``to_empty``, and initialises there."""
    import torch

    with torch.device("meta"):
        layer = torch.nn.Linear(20, 30)
    layer.to_empty(device=subject.device)
    layer.reset_parameters()
    subject.stays(layer.weight, layer.bias)
    assert 0 < layer.weight.std().item() < 1
