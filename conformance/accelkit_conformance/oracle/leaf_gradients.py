"""Check the gradients of leaves in various memory layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from accelkit.runtime.comparison.cotangents import cotangents
from accelkit_conformance.oracle.differentiable import COMMON, random_inputs
from accelkit_conformance.oracle.layouts import LAYOUTS, arranged
from accelkit_conformance.oracle.sample_transfer import to_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_leaf_layouts(subject: Subject, name: str) -> None:
    """Check the gradients that two backward passes through the graph of ``COMMON[name]`` accumulate in leaves of each layout.

    Failures are recorded in the subject.
    """
    for layout in ("contiguous", *LAYOUTS, "narrowed", "reversed", "expanded"):
        with subject.sample(f"{name} of leaves, {layout}", {"layout": layout}):
            found, expected = (_gradients(name, layout, device) for device in (subject.device, torch.device("cpu")))
            for number, ((leaf, mine), (_, theirs)) in enumerate(zip(found, expected, strict=True)):
                what = f"the gradient of input {number}"
                subject.assert_on_device(mine)
                tolerance = 1e-4 * float(theirs.abs().max())
                torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=tolerance, msg=lambda text, what=what: f"{what}: {text}")
                strides = [
                    (step, other) for step, other, length in zip(mine.stride(), leaf.stride(), mine.shape, strict=True) if length > 1
                ]
                assert all(step for step, _ in strides), f"{what} is an expanded tensor"
                is_dense = leaf.numel() == 1 + sum((length - 1) * step for length, step in zip(leaf.shape, leaf.stride(), strict=True))
                is_same = not is_dense or all(step == other for step, other in strides)
                assert is_same, f"{what} has the strides {mine.stride()}, not {leaf.stride()}"


def _gradients(name: str, layout: str, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the leaves on a device, each with its gradient after two backward passes."""
    inputs = random_inputs((4, 2, 8, 8), (8, 8))
    if layout == "expanded":
        leaves = [to_device(one.flatten()[:1], device).expand(one.shape) for one in inputs]
    else:
        leaves = [to_device(arranged(one, layout), device) for one in inputs]
    leaves = [one.requires_grad_() for one in leaves]
    output = COMMON[name](*leaves)
    gradient = cotangents([output], name)[0]
    output.backward(gradient, retain_graph=True)  # type: ignore[no-untyped-call]
    output.backward(gradient)  # type: ignore[no-untyped-call]
    return [(one.detach(), one.grad) for one in leaves if one.grad is not None]
