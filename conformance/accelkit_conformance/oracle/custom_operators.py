"""Programs that call operators which are defined with ``torch.library``. The operators are registered when this module is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from accelkit_conformance.oracle.programs import Program


@torch.library.custom_op("accelkit_conformance::scaled", mutates_args=())
def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


_scaled.register_autograd(lambda ctx, gradient: (gradient * ctx.factor, None), setup_context=_keep_factor)
_scaled.register_vmap(lambda info, in_dims, x, factor: (_scaled(x, factor) + 1, in_dims[0]))


@torch.library.custom_op("accelkit_conformance::powers", mutates_args=())
def _powers(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.square() * y, x**3


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _gradients_of_powers(ctx: Any, one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = ctx.saved_tensors
    return 2 * one * x * y + 3 * other * x.square(), one * x.square()


_powers.register_autograd(_gradients_of_powers, setup_context=_save)


@torch.library.custom_op("accelkit_conformance::add_one_", mutates_args={"x"})
def _add_one_(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("accelkit_conformance::own_kernel", mutates_args=(), device_types="cpu")
def _own_kernel(x: torch.Tensor) -> torch.Tensor:
    return x * 2


_library = torch.library.Library("accelkit_conformance", "FRAGMENT")
_library.define("composed(Tensor x) -> Tensor")
_library.impl("composed", lambda x: x.sin() * x, "CompositeImplicitAutograd")
_library.define("explicit(Tensor x) -> Tensor")
_library.impl("explicit", lambda x: x.cos() + 1, "CompositeExplicitAutograd")


def _leaf(device: torch.device) -> torch.Tensor:
    return torch.linspace(-1, 1, 6).view(2, 3).to(device).requires_grad_()


def _with_gradients(device: torch.device) -> Any:
    x = _leaf(device)
    y = _scaled(x, 2.5)
    y.square().sum().backward()
    with torch.no_grad():
        z = _scaled(x, 3.0)
    return y, z, x.grad


def _saving_tensors(device: torch.device) -> Any:
    x, y = _leaf(device), _leaf(device)
    first, second = _powers(x, y)
    (first.sin().sum() + second.sum()).backward()
    return first, second, x.grad, y.grad


def _in_place(device: torch.device) -> Any:
    x, leaf = torch.ones(3, device=device), _leaf(device)
    version = x._version
    _add_one_(x)
    y = leaf * 1
    _add_one_(y.detach())
    return x, x._version - version, y


def _vectorized(device: torch.device) -> Any:
    x = _leaf(device).detach()
    return torch.vmap(lambda one: _scaled(one, 2.0))(x), torch.vmap(lambda one: _scaled(one, 2.0), in_dims=1)(x)


def _with_a_kernel(device: torch.device) -> Any:
    if device.type != "cpu":
        _own_kernel.register_kernel(device.type)(lambda x: x + x)
    return _own_kernel(_leaf(device).detach())


def _composed(device: torch.device) -> Any:
    x = _leaf(device)
    y = torch.ops.accelkit_conformance.composed(x)
    y.sum().backward()
    return y, x.grad, torch.ops.accelkit_conformance.explicit(x.detach())


PROGRAMS: Mapping[str, Program] = {
    "gradients": _with_gradients,
    "saved_tensors": _saving_tensors,
    "in_place": _in_place,
    "vectorized": _vectorized,
    "own_kernel": _with_a_kernel,
    "composed": _composed,
}
"""The programs, by name."""
