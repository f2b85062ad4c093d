"""Training steps of typical models on the device, compared with the same steps on the CPU."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.typical_models import MODELS, OPTIMIZERS

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_STEPS = 3
_TOLERANCE = 2e-3


def check_model(subject: Subject, name: str) -> None:
    """Compare the losses, gradients, parameters and buffers of a model on the device with those on the CPU in double precision.

    Dropout is switched off, because its random numbers differ between devices. After each step, the parameters and buffers of the model on
    the CPU are copied to the model on the device, so that a small error does not grow.

    Raises:
        AssertionError: If a value is wrong.
        NotSupported: If the device lacks bool or a dtype that the model needs.
    """
    torch.default_generator.manual_seed(0)
    model, batch = MODELS[name]()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    subject.needs("bool")  # the dtype of causal masks
    require_dtypes(subject, lambda: (list(model.state_dict().values()), batch, copy.deepcopy(model)(*batch).backward()))
    double = copy.deepcopy(model).double()
    there = copy.deepcopy(model).to(subject.device)
    optimizers = [OPTIMIZERS[name](one) for one in (double, there)]
    batches = [batch, tuple(one.flip(0) for one in batch)]
    for step in range(_STEPS):
        losses = [_step(double, optimizers[0], batches, torch.device("cpu"), torch.float64)]
        losses.append(_step(there, optimizers[1], batches, subject.device, torch.float32))
        subject.compute()
        _compare(f"the losses of step {step}", losses[1][0], losses[0][0])
        for (parameter, gradient), exact in zip(losses[1][1].items(), losses[0][1].values(), strict=True):
            _compare(f"the gradient of {parameter} in step {step}", gradient, exact, losses[0][2])
        for (entry, value), exact in zip(there.state_dict().items(), double.state_dict().values(), strict=True):
            subject.assert_on_device(value)
            _compare(f"{entry} after step {step}", value, exact, float(exact.double().abs().max()) + 0.1)
        there.load_state_dict(double.state_dict())
    with torch.no_grad():
        found = [
            one.eval()(*_placed(batch, place, dtype))
            for one, place, dtype in ((there, subject.device, torch.float32), (double, torch.device("cpu"), torch.float64))
        ]
    _compare("the loss in evaluation mode", found[0], found[1])


def _placed(batch: Any, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    return [one.to(device, dtype if one.is_floating_point() else one.dtype) for one in batch]


def _step(model: Any, optimizer: Any, batches: Any, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, Any], float]:
    """Accumulate the gradients of the batches, clip them and take an optimizer step.

    Returns:
        The losses, each divided by the number of batches; the clipped gradients by name; and the largest absolute value in all of these
        gradients.
    """
    optimizer.zero_grad()
    model.train()
    losses = []
    for batch in batches:
        loss = model(*_placed(batch, device, dtype)) / len(batches)
        loss.backward()
        losses.append(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    optimizer.step()
    return torch.stack(losses), gradients, max(float(one.abs().max()) for one in gradients.values())


def _compare(what: str, found: torch.Tensor, exact: torch.Tensor, scale: float = 1.0) -> None:
    error = float((found.detach().cpu().double() - exact.double()).abs().max())
    assert error <= _TOLERANCE * scale, f"{what}: the error is {error:.2g}, and at most {_TOLERANCE * scale:.2g} is allowed"
