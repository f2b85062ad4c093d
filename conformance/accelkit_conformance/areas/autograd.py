"""Gradients on the device are those of float64 on the CPU, within the error that the CPU's own kernels have, for every operator that
has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelkit_conformance.checks import Case, check
from accelkit_conformance.profiles.operators import CORE, DTYPES, SMOKE

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _backward() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name, op in opdb.operators().items():
        for dtype in DTYPES:
            if opdb.supports(op, dtype, backward=True):
                if dtype == "float32" and name in SMOKE[:20]:
                    yield "smoke", (name, dtype)
                else:
                    yield "training" if name in CORE and dtype == "float32" else "full", (name, dtype)


@check("full", requires=["dtype.{1}"], over=_backward, seconds=180)  # grid_sampler_3d has a sample of five million elements
def backward(subject: Subject, name: str, dtype: str) -> None:
    """The gradient of each sample's result with respect to every input is right, and on the device."""
    from accelkit_conformance.oracle import opdb
    from accelkit_conformance.oracle.op_compare import compare_backward
    from accelkit_conformance.oracle.reproducer import describe_sample, facts_of, program

    op = opdb.operators()[name]
    samples = opdb.samples(op, dtype, min(subject.most_samples, 8), requires_grad=True)
    for sample in subject.crashing_last(samples, lambda one: facts_of((one.input, one.args, one.kwargs), dtype)):
        given = (sample.input, sample.args, sample.kwargs)
        make = lambda given=given, number=sample.name: program(subject, name, given, dtype=dtype, number=number, is_backward=True)  # noqa: E731
        with subject.sample(describe_sample(given), facts_of(given, dtype), make):
            compare_backward(subject, op, sample, given)


@check("smoke")
def leaf_gradients_stay(subject: Subject) -> None:
    """A leaf's gradient is on the leaf's device, in its dtype and shape; it accumulates, and set_to_none clears it."""
    import torch

    leaf = torch.ones(3, device=subject.device, requires_grad=True)
    (leaf * 2).sum().backward()
    (leaf * 3).sum().backward()
    assert leaf.grad is not None
    subject.stays(leaf.grad)
    assert leaf.grad.tolist() == [5.0] * 3, f"2 and 3 accumulated to {leaf.grad.tolist()}"
    assert leaf.grad.dtype == leaf.dtype


@check("smoke")
def hooks_see_device_tensors(subject: Subject) -> None:
    """Tensor hooks get gradients that are on the device, and what they return replaces them."""
    import torch

    seen = []
    leaf = torch.ones(3, device=subject.device, requires_grad=True)
    middle = leaf * 2
    middle.register_hook(lambda gradient: (seen.append(gradient.device), gradient * 10)[1])
    middle.sum().backward()
    assert seen == [subject.device], f"the hook saw a gradient on {seen}"
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [20.0] * 3


@check("smoke")
def custom_functions(subject: Subject) -> None:
    """A torch.autograd.Function saves and gets back device tensors."""
    import torch

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context, x):  # type: ignore[no-untyped-def]
            context.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(context, gradient):  # type: ignore[no-untyped-def]
            (x,) = context.saved_tensors
            assert x.device == subject.device, f"a saved tensor came back on {x.device}"
            return 2 * x * gradient

    leaf = torch.tensor([3.0], device=subject.device, requires_grad=True)
    Square.apply(leaf).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert leaf.grad.item() == 6.0


@check("training")
def second_derivatives(subject: Subject) -> None:
    """The gradient of a gradient is right."""
    import torch

    def second(device: object) -> torch.Tensor:
        x = torch.linspace(0.5, 2.0, 5, device=device, dtype=torch.float32).requires_grad_()  # type: ignore[call-overload]
        (first,) = torch.autograd.grad((x.sin() * x.exp()).sum(), x, create_graph=True)
        (found,) = torch.autograd.grad(first.sum(), x)
        return found

    torch.testing.assert_close(second(subject.device).cpu(), second("cpu"))


@check("training")
def activation_checkpointing(subject: Subject) -> None:
    """Recomputation draws the dropout mask of the forward pass, and gradients equal those without checkpointing."""
    import torch
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.5), torch.nn.Tanh()).to(subject.device)
    x = torch.randn(16, 32, device=subject.device, requires_grad=True)
    found = []
    for run in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        torch.default_generator.manual_seed(7)
        subject.accelerator.manual_seed(7)
        (gradient,) = torch.autograd.grad(run(x).sum(), [x])
        found.append(gradient.cpu())
    assert torch.equal(found[0], found[1]), "the mask in recomputation is not the forward pass's"
