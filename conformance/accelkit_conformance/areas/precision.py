"""Autocast computes in its dtype (bfloat16 or float16) or in float32, as torch's lists of operators specify; the gradient scaler skips
steps that overflowed; accelkit's precisions compute and store in the dtypes that their names state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.areas.operators import names_of, profile_of
from accelkit_conformance.checks import Case, check
from accelkit_conformance.late_errors import raises
from accelkit_conformance.results import Absent

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject

_DTYPES = ("bfloat16", "float16")


def _lower() -> Iterator[Case]:
    from accelkit_conformance.oracle.autocast_lists import LOWER_EVERYWHERE

    for name in LOWER_EVERYWHERE:
        yield from ((profile_of(name, "float32"), (dtype, name)) for dtype in _DTYPES)


def _listed() -> Iterator[Case]:
    from accelkit_conformance.oracle.autocast_lists import FLOAT32, LOWER, PROMOTED

    for name in (*LOWER, *FLOAT32, *PROMOTED):
        yield from ((profile_of(name, "float32"), (dtype, name)) for dtype in _DTYPES)


@check("full", requires=["autocast.{0}"], over=_lower)
def lower_precision_list(subject: Subject, dtype: str, name: str) -> None:
    """Under autocast, a matrix product, convolution, attention or ``prelu`` of float32 arguments returns a result in the dtype of autocast.
    The result and the gradients have the values that the CPU gives for arguments cast to this dtype. The dtype of the gradients is float32.
    Outside autocast, the same call returns float32."""
    from accelkit_conformance.oracle.autocast_lists import check_listed

    check_listed(subject, name, dtype)


@check("full", requires=["autocast.{0}", "autocast_float32_list"], over=_listed)
def listed_operators(subject: Subject, dtype: str, name: str) -> None:
    """Under autocast, an operator computes in the dtype that torch's list for devices other than the CPU prescribes: the dtype of autocast,
    float32, or the widest dtype of the arguments. The result and the gradients have the values that the CPU gives for arguments cast to
    this dtype. After autocast has ended, operators that are listed for the dtype of autocast compute in float32 again."""
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
        if (x @ x).dtype == torch.float32:
            raise Absent("autocast did not compute in bfloat16")
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
    """Under autocast, the gradients of float32 parameters are float32. They differ from the gradients without autocast, but the relative
    difference is below 0.05."""
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
    assert off < 0.05, f"the relative error of the gradient is {off:.3f}"
    if off <= 1e-6:
        raise Absent("the gradient is that of float32: autocast did not compute in bfloat16")


@check("smoke", requires=["autocast.bfloat16"])
def weights_are_cast_again_after_a_step(subject: Subject) -> None:
    """After an optimizer step, the next autocast region computes with the new weights, not with a cached copy of the old weights."""
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
def unsupported_dtypes_are_reported(subject: Subject) -> None:
    """Autocast to a dtype that no device supports (int32) raises an error, or warns and uses float32. The error may be a RuntimeError,
    ValueError, TypeError or AssertionError, because torch raises different errors for different devices."""
    import warnings

    import torch

    kind = subject.accelerator.autocast_device_type
    x = torch.ones(2, 2, device=subject.device)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with torch.autocast(kind, dtype=torch.int32):
                result = x @ x
        except (RuntimeError, ValueError, TypeError, AssertionError):
            return
    assert warned, "autocast to int32 neither raised nor warned"
    assert result.dtype == torch.float32


def _scaled_step(subject: Subject, poison: float | None) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Take one optimizer step with a scaler. Return the scaler, the parameter before the step, and the parameter after the step.

    If ``poison`` is not None, one element of the gradient is set to ``poison`` before the step.
    """
    import torch

    from accelkit_conformance.oracle.scaler_options import require_scaler

    require_scaler(subject)
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
    """``unscale_`` divides the gradients by the scale. A second call before the step raises RuntimeError."""
    import torch

    from accelkit_conformance.oracle.scaler_options import require_scaler

    require_scaler(subject)
    parameter = torch.nn.Parameter(torch.ones(3, device=subject.device))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler(subject.device_type, init_scale=256.0)
    scaler.scale((parameter * 3).sum()).backward()
    scaler.unscale_(optimizer)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [3.0] * 3
    with raises(subject, RuntimeError, about="already been called", doing="a second unscale_"):
        scaler.unscale_(optimizer)


@check("training", requires=["autocast.float16"], over=["one_optimizer", "two_optimizers", "twice"])
def scaler_with_several_dtypes(subject: Subject, way: str) -> None:
    """The scaler finds an infinity or NaN in the gradient of a float32, bfloat16 or float64 parameter, whatever the index of this parameter
    in the list of parameters. The scaler skips the step of the optimizer that updates this parameter, but not the step of another
    optimizer. The scaler halves the scale only once, even if ``unscale_`` was called before the step.
    """
    from accelkit_conformance.oracle.scaler_cases import check_several_dtypes

    check_several_dtypes(subject, way)


@check("training", requires=["autocast.{0}"], over=[f"{dtype},{way}" for dtype in _DTYPES for way in ("checkpoint", "reentrant")])
def autocast_in_recomputation(subject: Subject, dtype: str, way: str) -> None:
    """When activation checkpointing repeats the forward pass during the backward pass, operators compute in the same dtypes again, both
    under autocast and where autocast is disabled. The gradients equal those without checkpointing. Afterwards, autocast is off."""
    from accelkit_conformance.oracle.scaler_cases import check_recomputation

    check_recomputation(subject, dtype, is_reentrant=way == "reentrant")


def _regions() -> Iterator[Case]:
    from accelkit_conformance.oracle.autocast_regions import CASES

    yield from (("training", (dtype, name)) for dtype in _DTYPES for name in CASES)


@check("training", requires=["autocast.{0}"], over=_regions)
def autocast_regions(subject: Subject, dtype: str, name: str) -> None:
    """Autocast follows torch's rules in less common cases. A region without a ``dtype`` argument computes in the dtype that
    ``set_autocast_dtype`` set. Integers, float64 tensors, and the arguments of ``out=`` and in-place calls are not cast. Autocast is on
    only in the thread that enters it. A weight that was first used under ``no_grad`` gets a gradient from later calls in the same region.
    Buffers and intermediate results that have changed are cast again. So are changed weights if ``cache_enabled`` is False. Functions with
    ``custom_fwd`` and ``custom_bwd``, functions that autocast decorates, modules, nested regions of two dtypes and ``torch.func``
    transforms compute in the right dtypes. Gradients of float32 tensors are float32. A backward pass inside a region leaves autocast on."""
    from accelkit_conformance.oracle.autocast_regions import check_region

    check_region(subject, dtype, name)


def _autocast_modules() -> Iterator[Case]:
    from accelkit_conformance.oracle.autocast_modules import NAMES

    yield from (("full", (dtype, name)) for dtype in _DTYPES for name in NAMES)


@check("full", requires=["autocast.{0}", "autocast_float32_list"], over=_autocast_modules)
def autocast_modules(subject: Subject, dtype: str, name: str) -> None:
    """Under autocast, convolutions, recurrent modules, recurrent cells, attention, Transformer layers and normalizations with float32
    parameters give outputs and gradients that are close to those of the CPU in float32. In bfloat16, the norm of the error is at most 10 %
    of the norm of the tensor plus 1 % of the largest norm of an output or a gradient. In float16, it is at most a fifth of this. Attention,
    Transformer layers, recurrent modules and recurrent cells get inputs both in float32 and in the dtype of autocast, the last two with and
    without float32 states. The modules are in training mode and in evaluation mode. In evaluation mode, they are also called under
    ``inference_mode``.
    """
    from accelkit_conformance.oracle.autocast_modules import check_modules

    check_modules(subject, dtype, name)


@check("training", requires=["dtype.float32"], over=names_of("scaler_options", "CASES", "training"))
def scaler_options(subject: Subject, name: str) -> None:
    """The scales and gradients of ``torch.amp.GradScaler`` are exact for several growth factors, backoff factors and growth intervals. The
    scale never becomes infinite. The scaler accepts new scales, continues from a saved state, and does nothing if it was created with
    ``enabled=False``. It scales nested outputs. It unscales accumulated gradients, and transposed, strided, offset, 0-d and empty
    gradients."""
    from accelkit_conformance.oracle.scaler_options import CASES, require_scaler

    require_scaler(subject)
    CASES[name](subject)


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
    """A Runtime with a named precision stores and updates parameters in the storage dtype that the name states, and runs layers in the
    computation dtype that the name states. If the capability that the precision needs is declared ``none``, the Runtime raises an error
    that names the precision."""
    import torch

    from accelkit import AccelkitError

    needs, *dtypes = _NAMED[name]
    stored, computed = (getattr(torch, dtype) for dtype in dtypes)
    if subject.capabilities[needs] == "none":
        with raises(subject, AccelkitError, about=name, doing=f"precision {name} on a device that does not support it"):
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
