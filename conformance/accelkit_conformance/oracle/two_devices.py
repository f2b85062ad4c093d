"""Training of a model whose layers are on two devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.scaler_options import require_scaler
from accelkit_conformance.subject import assert_on_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_STEPS = 4
_POISONED = 2
"""The index of the step in which a gradient on the second device is infinite, so that the scaler skips the step."""


def _train(devices: Sequence[torch.device], dtype: torch.dtype, scaler: Any, **options: Any) -> tuple[list[Any], list[float]]:
    """Train a model whose first layers are on the first device and whose other layers are on the second device.

    In one step, a gradient is infinite, so that the scaler skips the step. If there is no scaler, this step is left out.

    Returns:
        The parameters, and a list of gradient norms. The list has one norm, measured before clipping, for each step that is not skipped.
    """
    torch.default_generator.manual_seed(3)
    upper: Any
    lower = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh()).to(devices[0], dtype)
    upper = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.GELU(), torch.nn.Linear(4, 2)).to(devices[1], dtype)
    parameters = [*lower.parameters(), *upper.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.05, **options)
    batches = torch.randn(_STEPS, 8, 5)
    norms = []
    for step in range(_STEPS):
        if step == _POISONED and scaler is None:
            continue
        optimizer.zero_grad()
        x = batches[step].to(devices[0], dtype).requires_grad_()
        hidden = lower(x)
        output = upper(hidden.to(devices[1]))
        loss = (output - 1).square().mean().to(devices[0]) + hidden.square().mean() * 0.1 + output.sum().to(devices[0]) * x.mean()
        (loss if scaler is None else scaler.scale(loss)).backward()
        assert x.grad is not None
        assert_on_device(devices[0], x.grad, *(one.grad for one in lower.parameters() if one.grad is not None))
        assert_on_device(devices[1], *(one.grad for one in upper.parameters() if one.grad is not None))
        if scaler is not None:
            if step == _POISONED:
                upper[0].weight.grad[1, 2] = float("inf")
            scaler.unscale_(optimizer)
        if step != _POISONED:
            norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, 0.5)))
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return parameters, norms


def check_two_devices(subject: Subject) -> None:
    """Compare training on two devices with training on the CPU, for both the for-loop and the foreach implementation of the optimizer.

    Raises:
        AssertionError: If a gradient is on the wrong device, or if a norm, a scale or a parameter is wrong.
        NotSupported: If there is only one device, or if torch's gradient scaler does not support the device.
    """
    require_scaler(subject)
    cpu = torch.device("cpu")
    expected, norms = _train((cpu, cpu), torch.float64, None)
    for devices in ((subject.device, subject.second_device()), (subject.second_device(), subject.device)):
        for is_foreach in (False, True):
            scaler = torch.amp.GradScaler(subject.device_type, init_scale=64.0)
            found, own = _train(devices, torch.float32, scaler, foreach=is_foreach)
            assert scaler.get_scale() == 32.0, f"after an infinity on the second device, the scale is {scaler.get_scale()}, not 32"
            for one, right in zip(own, norms, strict=True):
                assert abs(one - right) < 1e-3 * right, f"the norm of the gradients on both devices is {one}, not {right}"
            for mine, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(mine.detach().cpu(), theirs.detach().float(), rtol=1e-3, atol=1e-4)
