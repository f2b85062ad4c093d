"""``torch.compile`` with the accelerator's backend changes no result of the forward pass, the backward pass or training, even with dynamic
shapes or in-place operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


def _compiled(subject: Subject, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    import torch

    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(function, backend=subject.accelerator.compile_backend or "inductor", **options)
    return compiled


def _agree(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    import torch

    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@check("training", requires=["compile"], seconds=180)
def forward_and_backward(subject: Subject) -> None:
    """A compiled module gives the same result and the same parameter gradients as the eager module, and all of them are on the device."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2)).to(subject.device)
    x = torch.randn(4, 8, device=subject.device)
    eager = model(x)
    expected = torch.autograd.grad(eager.square().sum(), list(model.parameters()))
    found = _compiled(subject, model)(x)
    subject.assert_on_device(found)
    _agree(found, eager)
    for mine, theirs in zip(torch.autograd.grad(found.square().sum(), list(model.parameters())), expected, strict=True):
        subject.assert_on_device(mine)
        _agree(mine, theirs)


@check("training", requires=["compile"], seconds=180)
def dynamic_shapes(subject: Subject) -> None:
    """A function that was compiled with ``dynamic=True`` gives the same results as the eager function for several batch sizes. The results
    are on the device."""
    import torch

    function = lambda x: (x.softmax(-1) * x.shape[0]).sum(0)  # noqa: E731
    compiled = _compiled(subject, function, dynamic=True)
    for size in (2, 5, 9):
        x = torch.randn(size, 6, device=subject.device)
        found = compiled(x)
        subject.assert_on_device(found)
        _agree(found, function(x))


@check("training", requires=["compile"], seconds=180)
def in_place_and_views(subject: Subject) -> None:
    """If a function modifies its argument through views, the compiled function returns the same value as the eager function, and leaves the
    same values in the argument. The argument is a whole tensor, or a slice without the tensor's first row."""
    import torch

    def function(x: torch.Tensor) -> torch.Tensor:
        x[1:].mul_(2)
        x.t()[0].add_(1)
        return x.sum()

    compiled = _compiled(subject, function)
    for start in (0, 1):
        mine = torch.arange(16.0, device=subject.device).view(4, 4)
        theirs = mine.clone()
        assert compiled(mine[start:]).item() == function(theirs[start:]).item()
        assert torch.equal(mine.cpu(), theirs.cpu()), f"the tensor has wrong values after a call with its rows from {start} on"


@check("training", requires=["compile", "random_state"], seconds=180)
def training_steps(subject: Subject) -> None:
    """Five training steps of a compiled model give the same parameters as five steps of the eager model."""
    import copy

    import torch

    eager = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(subject.device)
    twin = copy.deepcopy(eager)
    batches = [torch.randn(4, 6, device=subject.device) for _ in range(5)]
    for model, run in ((eager, eager), (twin, _compiled(subject, twin))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches:
            optimizer.zero_grad()
            run(batch).square().mean().backward()
            optimizer.step()
    for mine, theirs in zip(twin.parameters(), eager.parameters(), strict=True):
        _agree(mine, theirs)


@check("full", requires=["compile"], seconds=180)
def other_arguments(subject: Subject) -> None:
    """A compiled function is called with a tensor and a number, then with a tensor of another shape and another number, and then with the
    first arguments again. If the device declares float64, the function is also called with a float64 tensor. The function returns three
    results, one of which is a view of its argument. In each call, all three are on the device and have the values and dtypes of the eager
    results."""
    from accelkit_conformance.oracle.compiled_calls import check_other_arguments

    check_other_arguments(subject, _compiled)


@check("full", requires=["compile"], seconds=180)
def state_of_modules(subject: Subject) -> None:
    """A compiled module with batch normalization and a counter is called three times. Each call gives the same result as the eager module,
    and the buffers of both modules are equal afterwards. The two modules also give the same results after both have been switched to
    evaluation mode, and after a parameter has been changed in the same way in both.
    """
    from accelkit_conformance.oracle.compiled_calls import check_state

    check_state(subject, _compiled)


@check("full", requires=["compile", "random_state"], seconds=180)
def random_numbers(subject: Subject) -> None:
    """``dropout`` and ``rand_like`` in a compiled function give different numbers in two calls, and the same numbers again after
    ``torch.manual_seed`` with the same seed. Dropout with ``p=0.5`` keeps between 40 % and 60 % of the elements, and the backward pass uses
    the mask of the forward pass."""
    from accelkit_conformance.oracle.compiled_calls import check_random_numbers

    check_random_numbers(subject, _compiled)
