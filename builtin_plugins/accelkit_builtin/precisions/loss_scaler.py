"""The loss scale of ``16-mixed``. It follows the rules of ``torch.amp.GradScaler``, and its state has the same entries.

GradScaler keeps the scale on the device, so that a program can skip a step without waiting for the device. A step of accelkit always reads
whether a gradient was infinite or NaN, so the scale is a Python number here. The scale is copied to each device only once after each
change, which saves six operators per step. In addition, the scale does not have to be updated as soon as the gradients are checked.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelkit import UsageError

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, slots=True)
class GradScalerOptions:
    """Options for the loss scale, under the names of the arguments of ``torch.amp.GradScaler``.

    Args:
        init_scale: The initial scale.
        growth_factor: The factor applied to the scale after ``growth_interval`` consecutive steps without an infinite or NaN gradient.
        backoff_factor: The factor applied to the scale after a step with an infinite or NaN gradient.
        growth_interval: The number of consecutive steps without an infinite or NaN gradient after which the scale grows.

    Raises:
        UsageError: If ``init_scale`` is not positive or is outside the range of float32, if ``growth_factor`` is not a finite number
            greater than 1, if ``backoff_factor`` is not between 0 and 1, or if ``growth_interval`` is less than 1.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        rules = {
            "init_scale": (2.0**-149 <= self.init_scale <= (2 - 2.0**-23) * 2.0**127, "it must be a positive number in float32"),
            "growth_factor": (1 < self.growth_factor < math.inf, "it must be greater than 1, so that the scale grows"),
            "backoff_factor": (0 < self.backoff_factor < 1, "it must be between 0 and 1, so that the scale becomes smaller"),
            "growth_interval": (self.growth_interval >= 1, "it is a number of steps, so it must be at least 1"),
        }
        for name, (is_valid, why) in rules.items():
            if not is_valid:
                default = type(self).__dataclass_fields__[name].default
                raise UsageError(
                    f"GradScalerOptions({name}={getattr(self, name)!r}) is not valid",
                    why=why,
                    hint=f"the default is {name}={default!r}",
                )


class GradientCheck:
    """The result of checking whether a gradient of an optimizer is infinite or NaN. It stays on the device until it is first read.

    Args:
        flags: For each device that has gradients, a tensor of shape () that is 1 if a gradient was infinite or NaN, else 0.
    """

    __slots__ = ("_flags", "_has_found_infinity")

    def __init__(self, flags: Sequence[torch.Tensor]) -> None:
        self._flags = flags
        self._has_found_infinity = False

    def has_found_infinity(self) -> bool:
        """Return whether a gradient was infinite or NaN. The first call waits for the device."""
        for flag in self._flags:
            if flag.item():
                self._has_found_infinity = True
        self._flags = ()
        return self._has_found_infinity


class LossScaler:
    """The loss scale, with methods that multiply losses by the scale, divide gradients by the scale, and adapt the scale.

    Args:
        options: The initial scale, and how it changes.
    """

    def __init__(self, options: GradScalerOptions) -> None:
        self._scale = _in_float32(options.init_scale)
        self._growth_factor, self._backoff_factor = options.growth_factor, options.backoff_factor
        self._growth_interval = options.growth_interval
        self._growth_tracker = 0  # the number of consecutive steps without an infinite or NaN gradient
        self._factors: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}  # the scale and its reciprocal on each device

    def multiply(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times the scale."""
        return loss * (self._factors.get(loss.device) or self._copy_to(loss.device))[0]

    def divide(self, gradients: Iterable[torch.Tensor]) -> GradientCheck:
        """Divide gradients by the scale in place, and check them for infinity and NaN. This method does not wait for the device.

        Args:
            gradients: Dense tensors, which may have different devices and dtypes.

        Raises:
            UsageError: If a gradient is in float16. In this case, none of the gradients are divided.
        """
        import torch

        groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for gradient in gradients:
            key = (gradient.device, gradient.dtype)
            if key in groups:
                groups[key].append(gradient)
            else:
                groups[key] = [gradient]
                if gradient.dtype is torch.float16:
                    raise UsageError(
                        "gradients in float16 cannot be divided by the loss scale",
                        why="they would become too small for float16 again; this precision needs parameters in float32",
                        hint="remove model.half(), because autocast computes in float16 by itself; or use precision='16-true'",
                    )
        flags: dict[torch.device, torch.Tensor] = {}
        with torch.no_grad():  # the gradients of a backward pass with create_graph=True require gradients
            for (device, _), some in groups.items():
                if device not in flags:
                    flags[device] = torch.zeros((), dtype=torch.float32, device=device)
                factors = self._factors.get(device) or self._copy_to(device)
                torch._amp_foreach_non_finite_check_and_unscale_(some, flags[device], factors[1])
        return GradientCheck(tuple(flags.values()))

    def update(self, has_found_infinity: bool) -> None:
        """Adapt the scale to the result of a step: whether a gradient was infinite or NaN."""
        scale, self._growth_tracker = self._after(has_found_infinity)
        if scale != self._scale:
            self._scale = scale
            self._factors.clear()

    def _after(self, has_found_infinity: bool) -> tuple[float, int]:
        """Return the scale and the growth tracker after a step, as ``torch._amp_update_scale_`` computes them."""
        if has_found_infinity:
            return _in_float32(self._scale * self._backoff_factor), 0
        successes = self._growth_tracker + 1
        if successes != self._growth_interval:
            return self._scale, successes
        grown = _in_float32(self._scale * self._growth_factor)
        return grown if math.isfinite(grown) else self._scale, 0

    def _copy_to(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        factors = (self._scale, _in_float32(1 / self._scale) if self._scale > 0 else math.inf)
        with torch.inference_mode(False):  # autograd does not accept tensors that inference mode has created
            scale, reciprocal = (torch.full((), factor, dtype=torch.float32, device=device) for factor in factors)
        self._factors[device] = scale, reciprocal
        return scale, reciprocal

    def state_dict(self, has_found_infinity: bool | None) -> dict[str, Any]:
        """Return the state, with the entries of ``GradScaler.state_dict``.

        Args:
            has_found_infinity: If this is not None, the result is the state that ``update(has_found_infinity)`` would lead to. ``update``
                itself is not called.
        """
        scale, tracker = (self._scale, self._growth_tracker) if has_found_infinity is None else self._after(has_found_infinity)
        return {
            "scale": scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": tracker,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the scale and the options to those in a state that ``state_dict`` or ``GradScaler.state_dict`` returned.

        The options are not checked, so that every scale that torch accepts can be loaded.
        """
        scale, tracker = _in_float32(float(state["scale"])), state["_growth_tracker"]
        factors = state["growth_factor"], state["backoff_factor"], state["growth_interval"]
        self._scale, self._growth_tracker = scale, tracker
        self._growth_factor, self._backoff_factor, self._growth_interval = factors
        self._factors.clear()


def _in_float32(number: float) -> float:
    """Return the number rounded to float32, the dtype of the scale on the device, or ``inf`` if the number is too large."""
    import torch

    return torch.tensor(number, dtype=torch.float32, device="cpu").item()
