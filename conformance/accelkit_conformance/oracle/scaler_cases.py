"""Gradient scaling of parameters of several dtypes, and autocast with activation checkpointing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from accelkit_conformance.oracle.scaler_options import require_scaler
from accelkit_conformance.results import Absent

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SCALE = 1024.0


def check_several_dtypes(subject: Subject, way: str) -> None:
    """Check that the scaler finds an infinity or NaN in the gradient of any parameter, and skips the step of that parameter's optimizer.

    Args:
        subject: The plugin under test, with its device.
        way: The case to check. In ``one_optimizer``, one optimizer has all parameters. In ``two_optimizers``, each of two optimizers has
            half of the parameters. In ``twice``, one optimizer has all parameters, and ``unscale_`` is called before the step.

    Raises:
        AssertionError: If a parameter or the scale has the wrong value.
    """
    require_scaler(subject)
    dtypes = [dtype for dtype in ("float32", "bfloat16", "float64") if not subject.lacks(dtype)]
    for poisoned, value in itertools.product((None, *range(2 * len(dtypes))), (float("inf"), float("nan"))):
        parameters = [
            torch.nn.Parameter(torch.ones(3, dtype=getattr(torch, dtype), device=subject.device)) for dtype in (*dtypes, *reversed(dtypes))
        ]
        num_groups = 2 if way == "two_optimizers" else 1
        groups = [parameters[start::num_groups] for start in range(num_groups)]
        optimizers = [torch.optim.SGD(group, lr=0.5) for group in groups]
        scaler = torch.amp.GradScaler(subject.device_type, init_scale=_SCALE)
        scaler.scale(sum(parameter.float().sum() for parameter in parameters)).backward()
        if poisoned is not None:
            gradient = parameters[poisoned].grad
            assert gradient is not None
            gradient[1] = value
        for optimizer in optimizers:
            if way == "twice":
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
        settings = "with only finite gradients"
        if poisoned is not None:
            settings = f"with {value} in the gradient of parameter {poisoned} of {len(parameters)}"
        for index, parameter in enumerate(parameters):
            is_skipped = poisoned is not None and poisoned % num_groups == index % num_groups
            expected = [1.0 if is_skipped else 0.5] * 3
            assert parameter.tolist() == expected, f"{settings}, parameter {index} ({parameter.dtype}) became {parameter.tolist()}"
        expected_scale = _SCALE if poisoned is None else _SCALE / 2
        assert scaler.get_scale() == expected_scale, f"{settings}, the scale became {scaler.get_scale()}, not {expected_scale}"


def check_recomputation(subject: Subject, dtype: str, *, is_reentrant: bool) -> None:
    """Check that activation checkpointing repeats the forward pass in the same dtypes and gives the same gradients.

    The dtypes and the gradients are compared with those of a training step without checkpointing.

    Args:
        subject: The plugin under test, with its device.
        dtype: The dtype of autocast.
        is_reentrant: The argument ``use_reentrant`` of ``checkpoint``. If it is True, the backward pass repeats the forward pass and then
            makes a nested call to autograd.

    Raises:
        AssertionError: If a dtype or a gradient differs, or if autocast is still enabled after the backward pass.
        Absent: If autocast has no effect even without checkpointing. The device then seems to lack autocast.
    """
    kind = subject.accelerator.autocast_device_type
    start, weight = torch.rand(4, 4, device=subject.device), torch.rand(4, 4, device=subject.device)
    gradients: list[list[torch.Tensor]] = []
    for is_repeated in (False, True):
        seen: list[list[torch.dtype]] = []
        x, w = start.clone().requires_grad_(), weight.clone().requires_grad_()

        def forward(x: torch.Tensor, w: torch.Tensor = w, seen: list[list[torch.dtype]] = seen) -> torch.Tensor:
            low = x @ w
            with torch.autocast(kind, enabled=False):
                high = low.float() @ w
            again = high @ w
            seen.append([low.dtype, high.dtype, again.dtype])
            return again

        with torch.autocast(kind, dtype=getattr(torch, dtype)), set_checkpoint_early_stop(False):
            y = checkpoint(forward, x, use_reentrant=is_reentrant) if is_repeated else forward(x)
        y.float().sum().backward()
        expected = [getattr(torch, dtype), torch.float32, getattr(torch, dtype)]
        if not is_repeated and seen == [[torch.float32] * 3]:
            raise Absent(f"autocast did not compute in {dtype}")
        assert seen == [expected] * (2 if is_repeated else 1), f"the passes computed in {seen}, not each in {expected}"
        assert x.grad is not None
        assert w.grad is not None
        gradients.append([x.grad.cpu(), w.grad.cpu()])
        assert not torch.is_autocast_enabled(kind), "autocast is still on after the backward pass"
    for once, repeated in zip(*gradients, strict=True):
        torch.testing.assert_close(repeated, once, rtol=1e-2, atol=1e-2)


def check_infinite_gradients(subject: Subject, place: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Check that a gradient scaler skips a step if one of many gradients is not finite, and otherwise unscales all gradients exactly.

    Args:
        subject: The plugin under test, with its device.
        place: The place of the gradient that is not finite: ``first``, ``middle`` or ``last``.
        shapes: The shapes of the parameters.

    Raises:
        AssertionError: If a gradient, a parameter or the scale is wrong.
    """
    require_scaler(subject)
    parameters = [torch.nn.Parameter(torch.ones(shape, device=subject.device)) for shape in shapes]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    scaler = torch.amp.GradScaler(subject.device_type, init_scale=1024.0)
    where = {"first": 0, "middle": len(parameters) // 2, "last": -1}[place]
    for value, scale in ((None, 1024.0), (float("inf"), 512.0), (float("nan"), 256.0)):
        before = [parameter.detach().cpu().clone() for parameter in parameters]
        scaler.scale(torch.zeros((), device=subject.device))
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, scaler.get_scale() * 0.5)
        if value is not None:
            parameters[where].grad.view(-1)[-1:] = value
        scaler.unscale_(optimizer)
        if value is None:
            wrong = [one for one in parameters if one.grad is not None and not bool((one.grad.cpu() == 0.5).all())]
            assert not wrong, f"{len(wrong)} of {len(parameters)} gradients were not unscaled exactly"
        scaler.step(optimizer)
        scaler.update()
        moved = [not torch.equal(parameter.detach().cpu(), one) for parameter, one in zip(parameters, before, strict=True) if one.numel()]
        settings = "with finite gradients" if value is None else f"with {value} in the {place} gradient"
        assert all(moved) if value is None else not any(moved), f"{settings}, {sum(moved)} of {len(moved)} parameters changed"
        assert scaler.get_scale() == scale, f"{settings}, the scale became {scaler.get_scale():g}, not {scale:g}"
