"""Autocast computes in the lower dtype or in float32, as torch's lists of operators specify; the gradient scaler skips steps that
overflowed; accelkit's precisions compute and store in the dtypes that their names state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import Case, check
from accelkit_conformance.subject import raises

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject

_DTYPES = ("bfloat16", "float16")
_LOWER = ("mm", "matmul", "bmm", "addmm", "linear", "conv2d", "baddbmm", "conv_transpose2d")
_FLOAT32 = ("softmax", "log_softmax", "exp", "log", "pow", "layer_norm", "cross_entropy", "mse_loss", "norm", "cumsum")


def _calls(device: torch.device, dtype: torch.dtype, computed: torch.dtype | None = None) -> dict[str, Callable[[], torch.Tensor]]:
    """Return functions by operator name. Each calls the operator on random inputs, which have the same values on every device.

    Args:
        device: The device of the inputs.
        dtype: The dtype to which the inputs are rounded.
        computed: The dtype to which the rounded inputs are converted before the call. None keeps ``dtype``.
    """
    import torch
    import torch.nn.functional as F  # the usual name

    generator = torch.Generator().manual_seed(6)

    def rand(*shape: int) -> torch.Tensor:
        return (torch.rand(*shape, generator=generator) + 0.5).to(dtype).to(computed or dtype).to(device)

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
        "cross_entropy": lambda: F.cross_entropy(rand(4, 2), torch.tensor([0, 1, 1, 0]).to(device)),
        "mse_loss": lambda: F.mse_loss(rand(4), rand(4)),
        "norm": lambda: rand(4).norm(),
        "cumsum": lambda: rand(4).cumsum(0),
    }


@check("smoke", requires=["autocast.{0}"], over=[f"{dtype},{name}" for dtype in _DTYPES for name in _LOWER])
def lower_list(subject: Subject, dtype: str, name: str) -> None:
    """Under autocast, matmuls and convolutions of float32 return autocast's dtype, with values within 2 % of those in float32. After
    autocast, they return float32."""
    import torch

    lower = getattr(torch, dtype)
    with torch.autocast(subject.accelerator.autocast_device_type, dtype=lower):
        inside = _calls(subject.device, torch.float32)[name]()
    assert inside.dtype == lower, f"{name} under autocast to {dtype} gave {inside.dtype}"
    subject.stays(inside)
    after = _calls(subject.device, torch.float32)[name]()
    assert after.dtype == torch.float32, f"{name} after autocast gave {after.dtype}"
    expected = _calls(torch.device("cpu"), torch.float32)[name]()
    torch.testing.assert_close(inside.float().cpu(), expected, rtol=0.02, atol=0.0)


@check(
    "smoke",
    requires=["autocast.{0}", "autocast_float32_list"],
    over=[f"{dtype},{name}" for dtype in _DTYPES for name in _FLOAT32],
)
def float32_list(subject: Subject, dtype: str, name: str) -> None:
    """Under autocast, operators that need the range of float32 compute in float32, even if their inputs have the lower dtype: the
    result has the dtype and the precision of float32."""
    import torch

    if name == "cross_entropy":
        subject.needs("int64")
    lower = getattr(torch, dtype)
    with torch.autocast(subject.accelerator.autocast_device_type, dtype=lower):
        found = _calls(subject.device, lower)[name]()
    assert found.dtype == torch.float32, f"{name} of {dtype} under autocast gave {found.dtype}"
    subject.stays(found)
    expected = _calls(torch.device("cpu"), lower, torch.float32)[name]()
    # torch's cross_entropy requests its log_softmax in the dtype of the input, and autocast does not override this
    torch.testing.assert_close(found.cpu(), expected, rtol=0.01 if name == "cross_entropy" else 1e-4, atol=1e-6)


def _listed() -> Iterator[Case]:
    from accelkit_conformance.oracle.autocast_lists import FLOAT32, LOWER, PROMOTED

    for name in sorted((*LOWER, *FLOAT32, *PROMOTED)):
        yield from (("full", (dtype, name)) for dtype in _DTYPES)


def _lower_everywhere() -> Iterator[Case]:
    from accelkit_conformance.oracle.autocast_lists import LOWER_EVERYWHERE

    for name in sorted(LOWER_EVERYWHERE):
        yield from (("full", (dtype, name)) for dtype in _DTYPES)


@check("full", requires=["autocast.{0}"], over=_lower_everywhere)
def every_lower_operator(subject: Subject, dtype: str, name: str) -> None:
    """Under autocast, an operator that autocast computes in the lower dtype on every device gives the values and gradients that the CPU
    gives for arguments of this dtype. The gradients of float32 arguments are float32."""
    from accelkit_conformance.oracle.autocast_lists import check_listed

    check_listed(subject, name, dtype)


@check("full", requires=["autocast.{0}", "autocast_float32_list"], over=_listed)
def every_listed_operator(subject: Subject, dtype: str, name: str) -> None:
    """Under autocast, an operator on torch's lists computes in the lower dtype, in float32 or in the widest dtype of its arguments, as its
    list says. It gives the values and gradients that the CPU gives for arguments of this dtype."""
    from accelkit_conformance.oracle.autocast_lists import check_listed

    check_listed(subject, name, dtype)


@check("smoke", requires=["autocast.bfloat16"])
def nesting(subject: Subject) -> None:
    """A nested region with ``enabled=False`` switches autocast off, and leaving that region switches autocast on again. Leaving a region
    through an error also restores the previous state."""
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
    """Under autocast, parameters in float32 have gradients in float32, which differ from those without autocast by less than 5 %."""
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
    assert off > 1e-6, "the gradient is that of float32: autocast did not compute in bfloat16"


@check("smoke", requires=["autocast.bfloat16"])
def weights_are_cast_anew(subject: Subject) -> None:
    """After an optimizer step, the next autocast region computes with the new weights, not with a cached copy of the old ones."""
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
    """Autocast to a dtype that no device supports (int32) raises RuntimeError, ValueError or TypeError, or warns and uses float32."""
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
    assert warned, "autocast to int32 neither raised nor warned"
    assert result.dtype == torch.float32


def _scaled_step(subject: Subject, poison: float | None) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Make one step with a scaler, and return the scaler and the parameter before and after."""
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
    """If a gradient contains infinity or NaN, the step is skipped: the parameters keep their exact values, and the scale is halved."""
    import torch

    scaler, before, after = _scaled_step(subject, float(value))
    assert torch.equal(before.cpu(), after.cpu()), f"a step with {value} in a gradient changed parameters"
    assert scaler.get_scale() == 512.0, f"the scale is {scaler.get_scale()}, not 512"


@check("training", requires=["autocast.float16"])
def scaler_steps_and_grows(subject: Subject) -> None:
    """Without overflow, the step uses the unscaled gradient, and after ``growth_interval`` steps the scale is doubled."""
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
    """``unscale_`` divides the gradients by the scale, for example for clipping. A second call before the step raises RuntimeError."""
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


# The needed capability, the dtype of the parameters, and the dtype in which layers compute.
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
    """A Runtime with a named precision stores and updates parameters and computes in the dtypes that the name states. If the capability
    that the precision needs is declared ``none``, the Runtime raises an error that names the precision."""
    import torch

    from accelkit import AccelkitError

    needs, *dtypes = _NAMED[name]
    stored, computed = (getattr(torch, dtype) for dtype in dtypes)
    if subject.capabilities[needs] == "none":
        with raises(AccelkitError, about=name, doing=f"precision {name} on a device that does not support it"):
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
    assert bias.grad.tolist() == [0.5], f"the optimizer used a gradient of {bias.grad.tolist()}, not 0.5"
    torch.testing.assert_close((before - bias.detach()).float().cpu(), torch.tensor([0.05]), rtol=0, atol=0.01)
