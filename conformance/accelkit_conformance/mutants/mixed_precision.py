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


class _UnderAutocast(Broken):
    """Changes results of torch's functions inside an autocast region of the device, where autocast would choose their dtype."""

    names: tuple[str, ...] = ()

    def install(self) -> None:
        import torch
        from torch.overrides import TorchFunctionMode

        names, dtype_of = self.names, self.dtype

        class Faults(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                is_changed = getattr(func, "__name__", "") in names and torch.is_autocast_enabled("fake_xpu")
                return result.to(dtype_of()) if is_changed else result

        Faults().__enter__()

    def dtype(self) -> Any:
        """What they give there."""
        raise NotImplementedError


@mutant("precision", "autocast")
class LowersSoftmax(_UnderAutocast):
    """Under autocast softmax and losses are computed in the lower dtype too."""

    names = ("softmax", "log_softmax", "exp", "log", "pow", "mse_loss")

    def dtype(self) -> Any:
        import torch

        return torch.get_autocast_dtype("fake_xpu")


@mutant("precision", "autocast")
class ConvolvesInFloat32(_UnderAutocast):
    """Convolutions and matmuls under autocast give float32."""

    names = ("mm", "matmul", "conv2d", "linear", "bmm")

    def dtype(self) -> Any:
        import torch

        return torch.float32


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
