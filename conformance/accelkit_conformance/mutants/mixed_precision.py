"""Autocast and the gradient scaler."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("precision", "autocast")
class AutocastsAnotherDevice(Broken):
    """The autocast device type is the CPU's: nothing on the device is cast."""

    @property
    def autocast_device_type(self) -> str:
        return "cpu"


@mutant("precision", "autocast")
class LowersSoftmax(Broken):
    """Under autocast softmax and losses are computed in the lower dtype too."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if torch.is_autocast_enabled("fake_xpu") and name in ("_softmax", "_log_softmax", "exp", "log", "pow.Tensor_Scalar", "mse_loss"):
            return result.to(torch.get_autocast_dtype("fake_xpu"))
        return result


@mutant("precision", "autocast")
class ConvolvesInFloat32(Broken):
    """Convolutions and matmuls under autocast give float32."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        return (
            result.float()
            if torch.is_autocast_enabled("fake_xpu") and name in ("mm", "convolution", "convolution_overrideable", "_convolution")
            else result
        )


@mutant("precision", "the scaler")
class NeverFindsInfinity(Broken):
    """The scaler's check for infinities finds none."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith("_amp_foreach_non_finite_check_and_unscale"):
            args[1].zero_()
        return result


@mutant("precision", "the scaler")
class NeverBacksOff(Broken):
    """The scale is never changed."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return args[0] if name.startswith("_amp_update_scale_") else call()


@mutant("precision", "the scaler")
class ForgetsToUnscale(Broken):
    """Gradients stay scaled."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name.startswith("_amp_foreach_non_finite_check_and_unscale"):
            kept = [one.clone() for one in args[0]]
            call()
            for one, before in zip(args[0], kept, strict=True):
                one.copy_(before)
            return None
        return call()
