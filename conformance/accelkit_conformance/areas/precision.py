"""Autocast computes in the dtype that it should, and back in float32 where it must; the gradient scaler skips what overflowed;
accelkit's precisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check
from accelkit_conformance.subject import raises

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject

_LOWER = ("mm", "matmul", "bmm", "addmm", "linear", "conv2d", "baddbmm", "conv_transpose2d")
_FLOAT32 = ("softmax", "log_softmax", "exp", "log", "pow", "layer_norm", "cross_entropy", "mse_loss", "norm", "cumsum")


def _calls(subject: Subject, dtype: torch.dtype) -> dict[str, Callable[[], torch.Tensor]]:
    import torch
    import torch.nn.functional as F  # as everybody writes it

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, device=subject.device, dtype=dtype) + 0.5

    label = torch.tensor([0, 1, 1, 0], device=subject.device)
    return {
        "mm": lambda: torch.mm(rand(4, 4), rand(4, 4)),
        "matmul": lambda: rand(4, 4) @ rand(4, 4),
        "bmm": lambda: torch.bmm(rand(2, 4, 4), rand(2, 4, 4)),
        "addmm": lambda: torch.addmm(rand(4, 4), rand(4, 4), rand(4, 4)),
        "baddbmm": lambda: torch.baddbmm(rand(2, 4, 4), rand(2, 4, 4), rand(2, 4, 4)),
        "linear": lambda: F.linear(rand(4, 4), rand(4, 4)),
        "conv2d": lambda: F.conv2d(rand(1, 2, 5, 5), rand(3, 2, 3, 3)),
        "conv_transpose2d": lambda: F.conv_transpose2d(rand(1, 2, 5, 5), rand(2, 3, 3, 3)),
        "softmax": lambda: rand(4, 4).softmax(-1),
        "log_softmax": lambda: rand(4, 4).log_softmax(-1),
        "exp": lambda: rand(4).exp(),
        "log": lambda: rand(4).log(),
        "pow": lambda: rand(4).pow(2.5),
        "layer_norm": lambda: F.layer_norm(rand(4, 4), [4]),
        "cross_entropy": lambda: F.cross_entropy(rand(4, 2), label),
        "mse_loss": lambda: F.mse_loss(rand(4), rand(4)),
        "norm": lambda: rand(4).norm(),
        "cumsum": lambda: rand(4).cumsum(0),
    }


@check("smoke", requires=["autocast.{0}"], over=[f"{dtype},{name}" for dtype in ("bfloat16", "float16") for name in _LOWER])
def lower_list(subject: Subject, dtype: str, name: str) -> None:
    """Matmuls and convolutions of float32 compute in autocast's dtype, and outside of it in float32 again."""
    import torch

    lower = getattr(torch, dtype)
    call = _calls(subject, torch.float32)[name]
    with torch.autocast(subject.accelerator.autocast_device_type, dtype=lower):
        inside = call()
    assert inside.dtype == lower, f"{name} under autocast to {dtype} gave {inside.dtype}"
    subject.stays(inside)
    assert call().dtype == torch.float32, f"{name} after autocast gave {call().dtype}"


@check(
    "smoke",
    requires=["autocast.{0}", "autocast_float32_list"],
    over=[f"{dtype},{name}" for dtype in ("bfloat16", "float16") for name in _FLOAT32],
)
def float32_list(subject: Subject, dtype: str, name: str) -> None:
    """What needs range computes in float32 also from lower inputs."""
    import torch

    with torch.autocast(subject.accelerator.autocast_device_type, dtype=getattr(torch, dtype)):
        found = _calls(subject, getattr(torch, dtype))[name]()
    assert found.dtype == torch.float32, f"{name} of {dtype} under autocast gave {found.dtype}"


@check("smoke", requires=["autocast.bfloat16"])
def nesting(subject: Subject) -> None:
    """``enabled=False`` inside switches it off, leaving it switches it on again; state is restored after an error."""
    import torch

    kind = subject.accelerator.autocast_device_type
    x = torch.ones(4, 4, device=subject.device)
    with torch.autocast(kind, dtype=torch.bfloat16):
        with torch.autocast(kind, enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16
        assert torch.is_autocast_enabled(kind)
    assert not torch.is_autocast_enabled(kind)
    try:
        with torch.autocast(kind, dtype=torch.bfloat16):
            raise KeyError
    except KeyError:
        pass
    assert (x @ x).dtype == torch.float32, "after an error inside, autocast is still on"


@check("smoke", requires=["autocast.bfloat16"])
def gradients_are_float32(subject: Subject) -> None:
    """Parameters in float32 get gradients in float32, close to those computed in float32."""
    import torch

    layer = torch.nn.Linear(16, 4).to(subject.device)
    x = torch.randn(8, 16, device=subject.device)
    layer(x).square().mean().backward()
    assert layer.weight.grad is not None
    exact = layer.weight.grad.clone()
    layer.zero_grad()
    with torch.autocast(subject.accelerator.autocast_device_type, dtype=torch.bfloat16):
        loss = layer(x).square().mean()
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32
    off = float((layer.weight.grad - exact).norm() / exact.norm())
    assert off < 0.05, f"the gradient is off by {off:.3f}, relative"
    assert off > 1e-6, "autocast computed in float32"


@check("smoke", requires=["autocast.bfloat16"])
def weights_are_cast_anew(subject: Subject) -> None:
    """After an optimizer step the next autocast region computes with the new weights, not with a cached copy of the old."""
    import torch

    layer = torch.nn.Linear(4, 1, bias=False).to(subject.device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=100.0)
    x = torch.ones(1, 4, device=subject.device)
    seen = []
    for _ in range(2):
        with torch.autocast(subject.accelerator.autocast_device_type, dtype=torch.bfloat16):
            y = layer(x)
        seen.append(y.item())
        y.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert abs(seen[1] - (seen[0] - 400)) < 4, f"the second pass gave {seen[1]}, the first {seen[0]}"


@check("smoke")
def unknown_dtypes_are_said(subject: Subject) -> None:
    """Autocast to a dtype that no device computes in (int32) warns or raises, and computes in float32."""
    import warnings

    import torch

    kind = subject.accelerator.autocast_device_type
    x = torch.ones(2, 2, device=subject.device)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with torch.autocast(kind, dtype=torch.int32):
                result = x @ x
        except (RuntimeError, ValueError, TypeError):
            return
    assert warned, "autocast to int32 said nothing"
    assert result.dtype == torch.float32


def _scaled_step(subject: Subject, poison: float | None) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """One step with a scaler: the scaler, the parameter before, and after."""
    import torch

    parameter = torch.nn.Parameter(torch.arange(1.0, 5.0, device=subject.device))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scaler = torch.amp.GradScaler(subject.device_type, init_scale=1024.0, growth_interval=2)
    before = parameter.detach().clone()
    scaler.scale((parameter * 2).sum()).backward()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [2048.0] * 4, f"scaled gradients are {parameter.grad.tolist()}"
    if poison is not None:
        parameter.grad[2] = poison
    scaler.step(optimizer)
    scaler.update()
    return scaler, before, parameter.detach()


@check("training", requires=["autocast.float16"], over=["inf", "-inf", "nan"])
def scaler_skips(subject: Subject, value: str) -> None:
    """With an infinity or NaN in a gradient the step is skipped, parameters stay bit-equal, and the scale is halved."""
    import torch

    scaler, before, after = _scaled_step(subject, float(value))
    assert torch.equal(before.cpu(), after.cpu()), f"a step with {value} in a gradient changed parameters"
    assert scaler.get_scale() == 512.0, f"the scale is {scaler.get_scale()}, not 512"


@check("training", requires=["autocast.float16"])
def scaler_steps_and_grows(subject: Subject) -> None:
    """Without overflow the step is that of the unscaled gradient, and after ``growth_interval`` steps the scale doubles."""
    import torch

    scaler, before, after = _scaled_step(subject, None)
    assert torch.equal(after.cpu(), before.cpu() - 1.0), f"the step gave {after.tolist()}"
    assert scaler.get_scale() == 1024.0
    parameter = torch.nn.Parameter(torch.ones(2, device=subject.device))
    scaler.scale(parameter.sum()).backward()
    scaler.step(torch.optim.SGD([parameter], lr=0.1))
    scaler.update()
    assert scaler.get_scale() == 2048.0, f"after two good steps the scale is {scaler.get_scale()}"


@check("training", requires=["autocast.float16"])
def scaler_unscales_once(subject: Subject) -> None:
    """``unscale_`` gives the true gradients, for clipping; a second one before the step is an error."""
    import torch

    parameter = torch.nn.Parameter(torch.ones(3, device=subject.device))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler(subject.device_type, init_scale=256.0)
    scaler.scale((parameter * 3).sum()).backward()
    scaler.unscale_(optimizer)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [3.0] * 3
    with raises(RuntimeError, about="already been called", doing="a second unscale_"):
        scaler.unscale_(optimizer)


# What it needs, and the dtypes that parameters are stored and layers computed in.
_NAMED = {
    "32-true": ("dtype.float32", "float32", "float32"),
    "64-true": ("dtype.float64", "float64", "float64"),
    "16-true": ("dtype.float16", "float16", "float16"),
    "bf16-true": ("dtype.bfloat16", "bfloat16", "bfloat16"),
    "16-mixed": ("autocast.float16", "float32", "float16"),
    "bf16-mixed": ("autocast.bfloat16", "float32", "bfloat16"),
}


@check("training", over=list(_NAMED))
def named_precisions(subject: Subject, name: str) -> None:
    """A Runtime in a named precision trains in the dtypes that the name says, or refuses with an error that says why."""
    import torch

    from accelkit import AccelkitError

    needs, *dtypes = _NAMED[name]
    stored, computed = (getattr(torch, dtype) for dtype in dtypes)
    if subject.capabilities[needs] == "none":
        with raises(AccelkitError, doing=f"precision {name} on a device that cannot"):
            _ = subject.runtime(precision=name).device
        return
    runtime = subject.runtime(precision=name)
    seen: list[torch.dtype] = []
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    model = runtime.prepare(model)
    optimizer = runtime.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    runtime.backward(model(runtime.to_device(torch.ones(2, 4))).mean() / 2)
    assert seen == [computed], f"a layer in {name} computed in {seen}"
    bias = model[1].bias
    assert bias.dtype == stored
    assert bias.grad is not None
    assert bias.grad.dtype == stored
    before = bias.detach().clone()
    optimizer.step()
    assert bias.grad.tolist() == [0.5], f"the optimizer steps by a gradient of {bias.grad.tolist()}, not 0.5"
    torch.testing.assert_close((before - bias.detach()).float().cpu(), torch.tensor([0.05]), rtol=0, atol=0.01)
