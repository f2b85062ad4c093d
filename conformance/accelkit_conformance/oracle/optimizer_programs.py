"""Programs that clip gradients, average models, change learning rates and save the state of optimizers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils._foreach_utils import _device_has_foreach_support

from accelkit_conformance.oracle.layouts import strided, transposed
from accelkit_conformance.oracle.programs import Program

_SHAPES = ((3, 4), (70,), (), (2, 3, 2), (300,))


def _parameters(device: torch.device, *, dtype: torch.dtype = torch.float32, with_empty: bool = False) -> list[torch.nn.Parameter]:
    """Return several parameters. All but the last have a gradient, and two of these gradients are not contiguous."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for number, shape in enumerate((*_SHAPES, *[(0,)] * with_empty)):
        gradient = torch.randn(shape, generator=generator).to(device, dtype) * 3
        parameter = torch.nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = transposed(gradient) if number == 0 else strided(gradient) if number == 1 else gradient
        found.append(parameter)
    return [*found, torch.nn.Parameter(torch.ones(2, dtype=dtype, device=device))]


def _gradients(parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [one.grad for one in parameters if one.grad is not None]


def _foreach(device: torch.device) -> tuple[bool, bool]:
    """Return the values of ``foreach`` with which gradients are clipped on this device.

    They are False and True. For a device type without ``foreach`` kernels, for which torch refuses True, they are False and False, so that
    the number of results is the same.
    """
    return False, _device_has_foreach_support(device)


def _norms(device: torch.device) -> Any:
    """Clip gradients with several kinds of norms and several limits.

    Return each total norm, the clipped gradients, and whether clipping has left the gradients unchanged. The gradients must be unchanged if
    the norm is below the limit.
    """
    found = []
    for norm in (1.0, 2.0, 3.0, 0.5, math.inf):
        for limit in (0.5, 1e6):
            for is_foreach in _foreach(device):
                parameters = _parameters(device, with_empty=math.isfinite(norm))
                before = [one.clone() for one in _gradients(parameters)]
                total = clip_grad_norm_(parameters, limit, norm_type=norm, foreach=is_foreach)
                is_unchanged = all(map(torch.equal, before, _gradients(parameters)))
                found.append((total, _gradients(parameters), is_unchanged))
    return found


def _norms_in_bfloat16(device: torch.device) -> Any:
    found = []
    for is_foreach in _foreach(device):
        parameters = [*_parameters(device), *_parameters(device, dtype=torch.bfloat16)]
        found.append((clip_grad_norm_(parameters, 2.0, foreach=is_foreach), _gradients(parameters)))
    return found


def _special_norms(device: torch.device) -> Any:
    parameters = _parameters(device)
    is_foreach = _foreach(device)[1]
    total = get_total_norm(_gradients(parameters), foreach=is_foreach)
    clip_grads_with_norm_(parameters, 3.0, total, foreach=is_foreach)
    nothing = clip_grad_norm_([parameters[-1]], 1.0)
    one = clip_grad_norm_(parameters[0], 0.1)
    found = []
    for value in (math.nan, math.inf):
        poisoned = _parameters(device)
        assert poisoned[3].grad is not None
        poisoned[3].grad[1, 2, 1] = value
        found.append((clip_grad_norm_(poisoned, 1.0), [bool(each.isnan().any()) for each in _gradients(poisoned)]))
    return (
        total,
        float(nothing),
        one,
        _gradients(parameters),
        [float(each[0]) == float(each[0]) for each in found],
        [each[1] for each in found],
    )


def _values(device: torch.device) -> Any:
    found = []
    for is_foreach in _foreach(device):
        parameters = _parameters(device, with_empty=True)
        clip_grad_value_(parameters, 0.7, foreach=is_foreach)
        found.append(_gradients(parameters))
    return found


def _zeroed(device: torch.device) -> Any:
    """Set gradients to zero in place. Other references to the same gradients must see the zeros."""
    found = []
    for is_foreach in (False, True):
        parameters = _parameters(device, with_empty=True)
        kept = _gradients(parameters)
        torch.optim.SGD(parameters, foreach=is_foreach).zero_grad(set_to_none=False)
        found.append((kept, [one.grad is mine for one, mine in zip(parameters, kept, strict=False)], parameters[-1].grad is None))
    return found


def _model(device: torch.device, norm: Callable[[int], torch.nn.Module] = torch.nn.LayerNorm) -> torch.nn.Sequential:
    torch.default_generator.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), norm(6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).to(device)


def _batches(device: torch.device, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.rand(8, 4, generator=generator) + 0.5).to(device) for _ in range(count)]


def _averages(device: torch.device) -> Any:
    model = _model(device, torch.nn.BatchNorm1d)
    averages = [
        AveragedModel(model),
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=True),
        AveragedModel(model, avg_fn=lambda average, new, count: 0.5 * average + 0.5 * new),
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    for batch in _batches(device, 4):
        optimizer.zero_grad()
        (model(batch) - 3).square().mean().backward()
        optimizer.step()
        scheduler.step()
        for average in averages:
            average.update_parameters(model)
    update_bn([batch.cpu() for batch in _batches(device, 3)], averages[0], device=device)
    return [list(one.parameters()) + list(one.module.buffers()) for one in averages], [averages[0](batch) for batch in _batches(device, 1)]


def _schedules(device: torch.device) -> Any:
    """Train with schedulers that change the learning rate, and with OneCycleLR, which also changes SGD's momentum and Adam's betas.

    Each step must use the current values.
    """
    schedulers = torch.optim.lr_scheduler
    makers: list[tuple[Any, dict[str, Any], Any]] = [
        (torch.optim.SGD, {"momentum": 0.9}, lambda one: schedulers.ExponentialLR(one, 0.3)),
        (torch.optim.SGD, {"momentum": 0.9}, lambda one: schedulers.OneCycleLR(one, 0.2, total_steps=6)),
        (torch.optim.Adam, {}, lambda one: schedulers.OneCycleLR(one, 0.2, total_steps=6)),
        (torch.optim.Adam, {}, lambda one: schedulers.CyclicLR(one, 0.001, 0.1, step_size_up=2, cycle_momentum=False)),
        (torch.optim.AdamW, {}, lambda one: schedulers.CosineAnnealingWarmRestarts(one, 2)),
        (torch.optim.RMSprop, {}, lambda one: schedulers.LambdaLR(one, lambda step: 1 / (step + 1))),
        (torch.optim.Adagrad, {}, lambda one: schedulers.SequentialLR(one, [schedulers.ConstantLR(one), schedulers.LinearLR(one)], [2])),
    ]
    found = []
    for make, options, schedule in makers:
        model = _model(device)
        optimizer = make(model.parameters(), lr=0.05, **options)
        scheduler = schedule(optimizer)
        for batch in _batches(device, 5):
            optimizer.zero_grad()
            (model(batch) - 3).square().mean().backward()
            optimizer.step()
            scheduler.step()
        found.append((list(model.parameters()), [float(group["lr"]) for group in optimizer.param_groups]))
    return found


def _plateaus(device: torch.device) -> Any:
    model = _model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    rates = []
    for loss in (3.0, 2.0, 2.0, 2.5, 2.0, 1.0, math.nan, 2.0):
        scheduler.step(torch.tensor(loss, device=device))
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def _hooks(device: torch.device) -> Any:
    model, seen = _model(device), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda one, args, kwargs: seen.append(next(model.parameters()).detach().clone()))
    optimizer.register_step_post_hook(lambda one, args, kwargs: seen.append(next(model.parameters()).detach().clone()))
    for batch in _batches(device, 2):
        (model(batch) - 3).square().mean().backward()
        optimizer.step()
    other = torch.optim.AdamW(_model(device).parameters(), lr=0.1)
    saved = copy.deepcopy(optimizer.state_dict())
    other.load_state_dict({**saved, "param_groups": [{**saved["param_groups"][0], "lr": 0.3}]})
    states = [[one.to(device) for one in state.values()] for state in other.state.values()]
    return seen, other.param_groups[0]["lr"], states


def _steps_in(device: torch.device, dtypes: tuple[torch.dtype, ...]) -> Any:
    """Take three steps with each of several optimizers, with and without ``foreach``, and return the parameters of each optimizer.

    Each optimizer has one group of six parameters. ``dtypes`` are the dtypes of the parameters, repeated as often as needed.
    """
    found = []
    for make, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {"amsgrad": True}), (torch.optim.RMSprop, {})):
        for is_foreach in (False, True):
            generator = torch.Generator().manual_seed(3)
            starts = [torch.randn(5, 2, 2, generator=generator) for _ in range(6)]
            parameters = [
                torch.nn.Parameter((torch.view_as_complex(one) if dtype.is_complex else one).to(device, dtype))
                for one, dtype in zip(starts, dtypes * 6, strict=False)
            ]
            optimizer = make(parameters, lr=0.1, foreach=is_foreach, **options)
            for step in range(3):
                for parameter in parameters:
                    parameter.grad = (parameter.detach() * (step + 1)).roll(1, 0)
                optimizer.step()
            found.append(parameters)
    return found


def _trained(make: Callable[..., torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Return the parameters of a model after four training steps. All tensors are created on the default device. After the third step, the
    state is loaded into a new optimizer."""
    layer = torch.nn.Linear(4, 3)
    x = torch.linspace(-1, 2, 20).view(5, 4)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view(parameter.shape))
    optimizer = make(layer.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(4):
        if step == 3:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = make(layer.parameters(), lr=0.05)
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(layer(x), torch.full((5, 3), 3.0)).backward()
        clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return list(layer.parameters())


def _default_device(device: torch.device) -> Any:
    found = []
    optim = torch.optim
    for make in (optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop, optim.Rprop, optim.Adadelta, optim.NAdam, optim.RAdam):
        with device:
            found.append(_trained(make))
        torch.set_default_device(device)
        try:
            found.append(_trained(make))
        finally:
            torch.set_default_device(None)
    return found


PROGRAMS: Mapping[str, Program] = {
    "default_device": _default_device,
    "norms": _norms,
    "norms_in_bfloat16": _norms_in_bfloat16,
    "special_norms": _special_norms,
    "values": _values,
    "zeroed": _zeroed,
    "averages": _averages,
    "schedules": _schedules,
    "plateaus": _plateaus,
    "hooks": _hooks,
    "several_dtypes": lambda device: _steps_in(device, (torch.float32, torch.bfloat16, torch.float32)),
    "complex_parameters": lambda device: _steps_in(device, (torch.complex64,)),
}
"""The programs, by name."""
