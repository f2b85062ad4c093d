"""Faults in less common cases of optimizer steps, gradient scaling and autocast."""

from __future__ import annotations

import weakref
from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken
from accelkit_conformance.mutants.derivatives import _Functions


@mutant("optimizers", "fused steps")
class KeepsTheFirstRate(Broken):
    """Fused optimizers use the learning rate of their first step in all later steps."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if not name.startswith("_fused_") or "lr" not in kwargs:
            return call()
        rates = self.__dict__.setdefault("rates", {})
        first = args[0][0]
        if id(first) not in rates:
            rates[id(first)] = kwargs["lr"]
            weakref.finalize(first, rates.pop, id(first), None)
        return func(*args, **{**kwargs, "lr": rates[id(first)]})


@mutant("optimizers", "fused steps")
class CountsTheFirstOnly(Broken):
    """Fused Adam and AdamW use the step count of the first parameter for all parameters."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if not name.startswith("_fused_adam"):
            return call()
        return func(*args[:5], [args[5][0]] * len(args[5]), *args[6:], **kwargs)


@mutant("optimizers", "fused steps")
class IgnoresFoundInfinity(Broken):
    """Fused optimizers take a step even if the gradient scaler has found an infinite or NaN gradient."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(*args, **{**kwargs, "found_inf": None}) if name.startswith("_fused_") else call()


@mutant("optimizers", "rates on the CPU")
class DoublesRatesOnTheCPU(Broken):
    """Fused optimizers double a learning rate that is a tensor on the CPU."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        rate = kwargs.get("lr")
        if name.startswith("_fused_") and getattr(getattr(rate, "device", None), "type", "") == "cpu":
            return func(*args, **{**kwargs, "lr": rate * 2})
        return call()


@mutant("optimizers", "the default device")
class RefusesTheDefaultDevice(Broken):
    """Creating an optimizer raises an error if the device is the default device."""

    def install(self) -> None:
        import torch

        original = torch.optim.Optimizer.__init__

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if torch.get_default_device().type == "fake_xpu":
                raise RuntimeError("optimizers cannot be created under a default device")
            original(self, *args, **kwargs)

        torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]


@mutant("optimizers", "empty tensors")
class StopsAtEmpty(Broken):
    """``_foreach_add_`` and ``_foreach_addcdiv_`` change none of the tensors in a list of three or more if the last one is empty."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        is_affected = name.startswith(("_foreach_add_", "_foreach_addcdiv_")) and len(args[0]) > 2 and not args[0][-1].numel()
        return None if is_affected else call()


@mutant("optimizers", "gradients in place")
class ZeroesContiguousGradients(Broken):
    """``_foreach_zero_`` does not change tensors that are not contiguous."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "_foreach_zero_":
            return call()
        contiguous = [one for one in args[0] if one.is_contiguous()]
        return func(contiguous) if contiguous else None  # torch refuses an empty list


@mutant("precision", "factors of the scaler")
class AlwaysDoubles(Broken):
    """The gradient scaler doubles and halves its scale, whatever its growth factor and its backoff factor are."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(*args[:3], 2.0, 0.5, *args[5:], **kwargs) if name == "_amp_update_scale_" else call()


@mutant("precision", "tensors that are not cast")
class CastsDouble(_Functions):
    """Under autocast, products of float64 matrices are computed in the autocast dtype."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        import torch

        is_affected = name in ("matmul", "__matmul__", "mm") and torch.is_autocast_enabled("fake_xpu") and args[0].dtype is torch.float64
        return call(*(one.float() for one in args)) if is_affected else call()


@mutant("checkpoint", "states of scalers")
class SavesNoGrowth(Broken):
    """The saved state of a gradient scaler does not say how many steps have passed since the scale was last changed."""

    def install(self) -> None:
        import torch

        setattr(torch.amp.GradScaler, "_get_growth_tracker", lambda self: 0)  # noqa: B010


@mutant("training", "several devices")
class FindsInfinityOnOneDevice(Broken):
    """The gradient scaler finds infinite and NaN gradients only on the device with index 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if not name.startswith("_amp_foreach_non_finite_check_and_unscale_") or args[0][0].device.index in (None, 0):
            return call()
        return func(args[0], args[1].clone(), *args[2:], **kwargs)


@mutant("optimizers", "complex parameters")
class FreezesImaginaryParts(Broken):
    """``add_`` with a factor ``alpha`` other than 1 does not change the imaginary part of a complex tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name != "add_.Tensor" or not args[0].is_complex() or kwargs.get("alpha", 1) == 1:
            return call()
        before = args[0].clone()
        result = call()
        torch.view_as_real(result)[..., 1].copy_(torch.view_as_real(before)[..., 1])
        return result


@mutant("optimizers", "skipped steps")
class LearnsInSkippedSteps(Broken):
    """In a step that the gradient scaler skips, fused Adam and AdamW decay the averages of the gradients."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        found_inf = kwargs.get("found_inf")
        if name.startswith("_fused_adam") and found_inf is not None and found_inf.item():
            for average in args[2]:
                average.mul_(kwargs["beta1"])
        return result
