"""Checks of compiled functions that are called again with other arguments, that draw random numbers, or that change buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name
from torch import nn

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Compile = Callable[..., Callable[..., Any]]


def _close(mine: torch.Tensor, theirs: torch.Tensor, what: str) -> None:
    assert mine.dtype == theirs.dtype, f"{what}: the compiled function gave {mine.dtype}, not {theirs.dtype}"
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda text: f"{what}: {text}")


def check_other_arguments(subject: Subject, compiled: Compile) -> None:
    """Check that a compiled function gives the same results as the eager function when it is called again with other values, shapes and
    dtypes.

    Args:
        subject: The plugin under test, with its device.
        compiled: A function that compiles another function.

    Raises:
        AssertionError: If a result differs from the eager result in dtype or values, or is not on the device.
    """

    def function(x: torch.Tensor, factor: float) -> tuple[torch.Tensor, ...]:
        return (x * factor).softmax(-1), x.sum(0), x.t()[1:]

    compact, base = compiled(subject, function), torch.randn(5, 6, device=subject.device)
    calls: list[tuple[str, torch.Tensor, float]] = [
        ("the first call", base, 2.0),
        ("another shape and another number", torch.randn(9, 3, device=subject.device), -0.5),
        ("the first call again", base, 2.0),
    ]
    if subject.capabilities.can("dtype.float64"):
        calls.append(("float64", base.double(), 2.0))
    for name, x, factor in calls:
        for mine, theirs in zip(compact(x, factor), function(x, factor), strict=True):
            subject.assert_on_device(mine)
            _close(mine, theirs, name)


class _Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=0.3)
        self.register_buffer("calls", torch.zeros(()))
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.norm(x) * self.calls  # type: ignore[no-any-return]


def check_state(subject: Subject, compiled: Compile) -> None:
    """Check that a compiled module changes its buffers as the eager module does, and that evaluation mode and a changed parameter take
    effect.

    Raises:
        AssertionError: If a result or a buffer differs from that of the eager module.
        NotSupported: If the device lacks int64.
    """
    subject.needs("int64")
    eager, twin = _Counter().to(subject.device), _Counter().to(subject.device)
    compact = compiled(subject, twin)
    for number in range(3):
        x = torch.randn(6, 4, device=subject.device) + number
        _close(compact(x), eager(x), f"call {number}")
    for (name, mine), theirs in zip(twin.named_buffers(), eager.buffers(), strict=True):
        _close(mine, theirs, f"the buffer {name}")
    x = torch.randn(6, 4, device=subject.device)
    twin.eval(), eager.eval()
    _close(compact(x), eager(x), "in evaluation mode")
    with torch.no_grad():
        twin.norm.weight.mul_(3), eager.norm.weight.mul_(3)
    _close(compact(x), eager(x), "after a parameter was changed")


def check_random_numbers(subject: Subject, compiled: Compile) -> None:
    """Check the random numbers and the dropout of a compiled function.

    Each call must draw new numbers, the same seed must give the same numbers, and the backward pass of dropout must use the mask of the
    forward pass.

    Raises:
        AssertionError: If two calls draw the same numbers, if the same seed gives different numbers, if dropout with p=0.5 keeps at most
            40 % or at least 60 % of the elements, or if the backward pass of dropout uses a different mask.
        NotSupported: If the device lacks bool.
    """
    subject.needs("bool")

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.dropout(x, 0.5), torch.rand_like(x)

    compact = compiled(subject, function)
    x = torch.ones(2000, device=subject.device, requires_grad=True)
    compact(x)  # compiling may draw random numbers
    torch.manual_seed(5)
    first, second = compact(x), compact(x)
    torch.manual_seed(5)
    again = compact(x)
    for what, mine, other, same in zip(("dropout", "rand_like"), first, second, again, strict=True):
        assert not torch.equal(mine.detach().cpu(), other.detach().cpu()), (
            f"{what} gave the same numbers in two calls to a compiled function"
        )
        assert torch.equal(mine.detach().cpu(), same.detach().cpu()), f"{what} in a compiled function does not depend on the seed"
    share = float((first[0].detach().cpu() != 0).double().mean())
    assert 0.4 < share < 0.6, f"dropout in a compiled function keeps {share:.3f} of the elements, not half"
    (gradient,) = torch.autograd.grad(first[0].sum(), x)
    assert torch.equal(gradient.cpu(), first[0].detach().cpu()), "the backward pass of a compiled function uses a different dropout mask"
