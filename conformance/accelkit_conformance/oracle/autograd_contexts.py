"""Checks of leaf gradients, custom functions, backward passes on another device, gradient modes, and activation checkpointing on another
device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from accelkit_conformance.oracle.differentiable import COMMON
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.subject import assert_on_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_no_grad_and_inference_mode(subject: Subject) -> None:
    """Check that no graph is recorded under ``torch.no_grad`` or ``torch.inference_mode``, and that graphs are recorded again
    afterwards."""
    leaf = torch.full((4,), 3.0, device=subject.device, requires_grad=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = {"mul": leaf * 2, "add": leaf + 3, "matmul": leaf @ leaf, "sum": leaf.sum(), "relu": leaf.relu()}
        assert (leaf * 2).requires_grad, f"after {mode.__name__} no graph is recorded"
        for name, result in found.items():
            assert not result.requires_grad, f"{name} under {mode.__name__} records a graph"
            assert result.grad_fn is None, f"{name} under {mode.__name__} records a graph"
            assert result.is_inference() == (mode is torch.inference_mode)
            subject.assert_on_device(result)
        values = {name: result.flatten()[0].item() for name, result in found.items()}
        assert values == {"mul": 6.0, "add": 6.0, "matmul": 36.0, "sum": 12.0, "relu": 3.0}, f"under {mode.__name__}: {values}"
        try:
            with mode():
                raise KeyError
        except KeyError:
            pass
        assert (leaf * 2).requires_grad, f"after an error inside {mode.__name__} no graph is recorded"


def check_backward_on_another_device(subject: Subject) -> None:
    """Check that a backward pass on a device that is not current gives the same gradients as a backward pass on the current device. Also
    check the devices of the results, of the gradients, and of a tensor that a hook creates."""
    image, matrix = torch.ones(4, 2, 8, 8), torch.ones(8, 8)
    functions = [one for one in COMMON.values() if not lacking_dtypes(subject, lambda: one(image, matrix))]  # noqa: B023
    found, places = [], []
    for device in (subject.device, subject.second_device()):
        generator = torch.Generator().manual_seed(3)
        inputs = [torch.randn(4, 2, 8, 8, generator=generator), torch.randn(8, 8, generator=generator)]
        there = [one.to(device).requires_grad_() for one in inputs]
        results = [function(*there) for function in functions]
        results[-1].register_hook(lambda _: places.append(torch.empty(1, device=subject.device_type).device))
        gradients = torch.autograd.grad(sum(result.square().sum() for result in results), there)  # type: ignore[arg-type]
        assert_on_device(device, *results, *gradients)
        assert places == [device], f"in a hook of a tensor on {device}, a new tensor is on {places}"
        places.clear()
        found.append([gradient.cpu() for gradient in gradients])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def check_checkpointing_on_another_device(subject: Subject, way: str) -> None:
    """Check that activation checkpointing of a function with arguments on two devices changes neither gradients nor random states.
    Reentrant checkpointing is used if ``way`` is ``reentrant``."""
    devices = (subject.device, subject.second_device())
    other = torch.linspace(1, 2, 200, device=devices[1])  # without a gradient: torch does not support recomputation in two threads at once

    def forward(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * x, 0.5) * (1 + torch.nn.functional.dropout(other, 0.5).to(x.device))

    found = []
    for run in (forward, lambda *inputs: checkpoint(forward, *inputs, use_reentrant=way == "reentrant")):
        torch.manual_seed(5)
        x = torch.linspace(1, 2, 200, device=subject.device).requires_grad_()
        run(x, other).sum().backward()
        found.append([x.grad.cpu(), *(torch.rand(20, device=device).cpu() for device in devices)])  # type: ignore[union-attr]
    names = ["the gradient", *(f"the next random numbers of {device}" for device in devices)]
    wrong = [name for name, one, another in zip(names, *found, strict=True) if not torch.equal(one, another)]
    assert not wrong, f"these differ from those without checkpointing: {', '.join(wrong)}"


def check_leaf_gradients_stay(subject: Subject) -> None:
    """Check that backward passes add to the gradient of a leaf, and that ``zero_grad`` removes it."""
    leaf = torch.ones(2, 3, device=subject.device, requires_grad=True)
    (leaf * 2).sum().backward()
    (leaf * 3).sum().backward()
    assert leaf.grad is not None
    subject.assert_on_device(leaf.grad)
    assert leaf.grad.tolist() == [[5.0] * 3] * 2, f"2 and 3 added up to {leaf.grad.tolist()}"
    assert leaf.grad.dtype == leaf.dtype
    assert leaf.grad.shape == leaf.shape
    torch.optim.SGD([leaf]).zero_grad(set_to_none=True)
    assert leaf.grad is None, "zero_grad(set_to_none=True) left a gradient"
    (leaf * 4).sum().backward()
    assert leaf.grad.tolist() == [[4.0] * 3] * 2, f"after zero_grad, a gradient of 4 became {leaf.grad.tolist()}"


def check_custom_functions(subject: Subject) -> None:
    """Check that ``backward`` of a custom ``torch.autograd.Function`` gets saved tensors and the output gradient on the device."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context, x):  # type: ignore[no-untyped-def]
            context.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(context, gradient):  # type: ignore[no-untyped-def]
            (x,) = context.saved_tensors
            assert x.device == subject.device, f"a saved tensor came back on {x.device}"
            assert gradient.device == subject.device, f"the output gradient is on {gradient.device}"
            return 2 * x * gradient

    leaf = torch.tensor([3.0], device=subject.device, requires_grad=True)
    Square.apply(leaf).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    subject.assert_on_device(leaf.grad)
    assert leaf.grad.item() == 6.0
