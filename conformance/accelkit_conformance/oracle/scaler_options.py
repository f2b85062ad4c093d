"""Checks of less common options and uses of gradient scalers. The expected scales and gradients are exact."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.layouts import offset, strided, transposed

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def require_scaler(subject: Subject) -> None:
    """Require that torch's gradient scaler supports the device. The scaler computes the inverse of the scale in float64, except on MPS.

    Raises:
        NotSupported: If the device lacks float64 and is not an MPS device.
    """
    if subject.device_type != "mps":
        subject.needs("float64")


def _scaler(subject: Subject, **options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(subject.device_type, **{"init_scale": 8.0, **options})


def _step(subject: Subject, scaler: torch.amp.GradScaler, value: float = 1.0) -> float:
    """Take a step with a gradient of ``value``, and return the new scale."""
    parameter = torch.nn.Parameter(torch.ones(3, device=subject.device))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scaler.scale((parameter * value).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    expected = 1 - 0.5 * value if math.isfinite(value) else 1.0
    assert parameter.tolist() == [expected] * 3, f"a step with the gradient {value} gave {parameter.tolist()}"
    return float(scaler.get_scale())


def _scales(subject: Subject, values: list[float], expected: list[float], **options: Any) -> None:
    scaler = _scaler(subject, **options)
    found = [_step(subject, scaler, value) for value in values]
    assert found == expected, f"with {options} and the gradients {values}, the scales are {found}, not {expected}"


def _factors(subject: Subject) -> None:
    inf = math.inf
    _scales(subject, [1, 1, 1, 1], [8, 24, 24, 72], growth_factor=3.0, growth_interval=2)
    _scales(subject, [1, inf, 1, 1, inf, inf], [8, 2, 2, 4, 1, 0.25], backoff_factor=0.25, growth_interval=2)
    _scales(subject, [1, 1, inf, 1, 1, 1], [8, 8, 4, 4, 4, 8], growth_interval=3)
    _scales(subject, [1, inf, 1], [16, 8, 16], growth_interval=1)


def _largest_scale(subject: Subject) -> None:
    scaler = _scaler(subject, init_scale=2.0**126, growth_interval=1)
    found = [_step(subject, scaler, 2.0**-100) for _ in range(3)]
    assert found == [2.0**127] * 3, f"scales above 2**127 are {found}"


def _new_scales(subject: Subject) -> None:
    scaler = _scaler(subject)
    _step(subject, scaler)
    scaler.update(4.0)
    assert _step(subject, scaler) == 4.0
    scaler.update(torch.tensor(2.0, device=subject.device))
    assert _step(subject, scaler) == 2.0
    assert _step(subject, scaler, math.inf) == 1.0


def _saved(subject: Subject) -> None:
    scaler = _scaler(subject, growth_interval=3)
    _step(subject, scaler)
    _step(subject, scaler)
    state = copy.deepcopy(scaler.state_dict())
    assert (state["scale"], state["_growth_tracker"]) == (8.0, 2), f"the saved state is {state}"
    other = _scaler(subject, init_scale=1.0, growth_interval=1)
    other.load_state_dict(state)
    assert [_step(subject, other) for _ in range(4)] == [16.0, 16.0, 16.0, 32.0], "a loaded scaler does not continue"


def _disabled(subject: Subject) -> None:
    scaler = _scaler(subject, enabled=False)
    x = torch.ones(2, device=subject.device)
    assert scaler.scale(x) is x
    assert [_step(subject, scaler) for _ in range(2)] == [1.0, 1.0]


def _outputs(subject: Subject) -> None:
    scaler = _scaler(subject)
    x = torch.ones(2, device=subject.device)
    several = scaler.scale([x, (x * 2, [x * 3])])  # type: ignore[list-item]
    found = [several[0], several[1][0], several[1][1][0]]  # type: ignore[index]
    for one, factor in zip(found, (1, 2, 3), strict=True):
        subject.assert_on_device(one)
        assert one.tolist() == [8.0 * factor] * 2
    if not subject.lacks("bfloat16"):
        assert scaler.scale(x.bfloat16()).dtype == torch.bfloat16  # type: ignore[union-attr]


def _accumulated(subject: Subject) -> None:
    parameter = torch.nn.Parameter(torch.ones(3, device=subject.device))
    optimizer, scaler = torch.optim.SGD([parameter], lr=1.0), _scaler(subject)
    for factor in (1, 2, 4):
        scaler.scale((parameter * factor).sum()).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_value_([parameter], 5.0)
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [-4.0] * 3, f"three accumulated gradients, clipped to 5, gave {parameter.tolist()}"


def _layouts(subject: Subject) -> None:
    dtypes = [dtype for dtype in ("float32", "bfloat16") if not subject.lacks(dtype)]
    for dtype in dtypes:
        for place in (None, 0, 1, 2, 3, 4):
            kinds: list[Callable[[torch.Tensor], torch.Tensor]] = [transposed, strided, offset, torch.clone, torch.clone]
            shapes = ((5, 7), (3, 5), (33,), (), (0,))
            whole = [torch.arange(1.0, 1 + math.prod(shape)).view(shape).to(subject.device, getattr(torch, dtype)) for shape in shapes]
            gradients = [kind(one * 4) for kind, one in zip(kinds, whole, strict=True)]
            parameters = [torch.nn.Parameter(torch.zeros_like(one)) for one in whole]
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            if place is not None and gradients[place].numel():
                gradients[place][(-1,) * gradients[place].ndim] = math.nan
            scaler = _scaler(subject, init_scale=4.0)
            scaler.scale(torch.zeros((), device=subject.device))
            optimizer = torch.optim.SGD(parameters, lr=1.0)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            is_finite = place in (None, 4)
            assert scaler.get_scale() == (4.0 if is_finite else 2.0), f"with NaN in gradient {place}, the scale is {scaler.get_scale()}"
            for number, (parameter, one) in enumerate(zip(parameters, whole, strict=True)):
                expected = -one if is_finite else one * 0
                assert torch.equal(parameter.detach().cpu(), expected.cpu()), (
                    f"parameter {number} in {dtype} is wrong, with NaN in gradient {place}"
                )


CASES: Mapping[str, Callable[[Subject], None]] = {
    "factors": _factors,
    "largest_scale": _largest_scale,
    "new_scales": _new_scales,
    "saved": _saved,
    "disabled": _disabled,
    "outputs": _outputs,
    "accumulated": _accumulated,
    "layouts": _layouts,
}
"""The cases, by name."""
