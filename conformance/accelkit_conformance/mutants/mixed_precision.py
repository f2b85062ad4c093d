"""Faults in autocast and the gradient scaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("precision", "autocast")
class AutocastsAnotherDevice(Broken):
    """``autocast_device_type`` is ``cpu``, so nothing on the device is cast."""

    @property
    def autocast_device_type(self) -> str:
        return "cpu"


@mutant("precision", "autocast")
class LowersSoftmax(Broken):
    """Under autocast, ``softmax``, ``log_softmax``, ``exp``, ``log``, ``pow`` and ``mse_loss`` return the autocast dtype, not float32."""

    def install(self) -> None:
        _change_under_autocast(
            ("softmax", "log_softmax", "exp", "log", "pow", "mse_loss"),
            lambda result, lower: result.to(lower),
        )


@mutant("precision", "autocast")
class ConvolvesInFloat32(Broken):
    """Under autocast, convolutions and matmuls return float32."""

    def install(self) -> None:
        _change_under_autocast(("mm", "matmul", "conv2d", "linear", "bmm"), lambda result, lower: result.float())


@mutant("precision", "modules under autocast")
class RefusesMixedStates(Broken):
    """Recurrent cells raise an error if the state and the input have different dtypes, because autocast does not cast them."""

    def install(self) -> None:
        import torch

        for name in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"):
            original = getattr(torch._VF, name)

            def cell(x: Any, state: Any, *args: Any, original: Any = original) -> Any:
                if x.device.type == "fake_xpu":
                    torch._check((state[0] if isinstance(state, list | tuple) else state).dtype == x.dtype, lambda: "dtypes differ")
                return original(x, state, *args)

            setattr(torch._VF, name, cell)


@mutant("precision", "the scaler")
class NeverFindsInfinity(Broken):
    """The gradient scaler never finds an infinity."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith("_amp_foreach_non_finite_check_and_unscale"):
            args[1].zero_()
        return result


@mutant("precision", "the scaler")
class NeverBacksOff(Broken):
    """The gradient scaler never changes its scale."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return args[0] if name.startswith("_amp_update_scale_") else call()


@mutant("precision", "the scaler")
class ForgetsToUnscale(Broken):
    """The gradient scaler does not unscale gradients."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name.startswith("_amp_foreach_non_finite_check_and_unscale"):
            kept = [one.clone() for one in args[0]]
            call()
            for one, before in zip(args[0], kept, strict=True):
                one.copy_(before)
            return None
        return call()


@mutant("precision", "values under autocast")
class RoundsWhatNeedsRange(Broken):
    """Under autocast, the float32 results of softmax, layer_norm, ``mse_loss`` and other functions are rounded to the autocast dtype."""

    def install(self) -> None:
        _change_under_autocast(
            ("softmax", "log_softmax", "exp", "log", "pow", "layer_norm", "mse_loss"),
            lambda result, lower: result.to(lower).to(result.dtype),
        )


@mutant("precision", "values under autocast")
class MultipliesWrongly(Broken):
    """Under autocast, the results of matmuls have the right dtype, but are 1.5 times as large as they should be."""

    def install(self) -> None:
        _change_under_autocast(("mm", "matmul", "bmm", "linear"), lambda result, lower: result * 1.5)


@mutant("precision", "autocast's lists")
class KeepsVectorsInFloat32(Broken):
    """Under autocast, ``mv``, ``addmv`` and ``addr`` return float32 instead of the autocast dtype."""

    def install(self) -> None:
        _change_under_autocast(("mv", "addmv", "addr"), lambda result, lower: result.float())


@mutant("precision", "autocast's lists")
class LowersSomeLosses(Broken):
    """Under autocast, the Huber loss, the Kullback-Leibler divergence and cosine similarity return results in the autocast dtype instead
    of float32."""

    def install(self) -> None:
        _change_under_autocast(("huber_loss", "kl_div", "cosine_similarity"), lambda result, lower: result.to(lower))


@mutant("precision", "autocast's lists")
class PromotesToTheNarrowest(Broken):
    """Under autocast, results of addcdiv, addcmul, dot and tensordot have the autocast dtype, not the widest dtype of the arguments."""

    def install(self) -> None:
        _change_under_autocast(("addcdiv", "addcmul", "dot", "tensordot"), lambda result, lower: result.to(lower))


@mutant("precision", "values under autocast")
class ConvolvesVolumesWrongly(Broken):
    """Under autocast, the results of three-dimensional convolutions have the right dtype, but are a quarter too large."""

    def install(self) -> None:
        _change_under_autocast(("conv3d", "conv_transpose3d"), lambda result, lower: result * 1.25)


def _change_under_autocast(names: tuple[str, ...], change: Callable[[Any, Any], Any]) -> None:
    """Apply ``change`` to the results of the torch functions named in ``names`` while autocast is enabled for the device.

    The first argument of ``change`` is the result. The second argument is the dtype that autocast uses.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Faults(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") in names and torch.is_autocast_enabled("fake_xpu"):
                return change(result, torch.get_autocast_dtype("fake_xpu"))
            return result

    Faults().__enter__()


@mutant("precision", "several gradients")
class LooksAtTheFirstGradient(Broken):
    """For each dtype, the gradient scaler looks for infinities only in the first gradient of this dtype."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if not name.startswith("_amp_foreach_non_finite_check_and_unscale"):
            return call()
        func([args[0][0]], *args[1:], **kwargs)
        found = args[1].clone()
        if len(args[0]) > 1:
            func(args[0][1:], *args[1:], **kwargs)
        args[1].copy_(found)
        return None


@mutant("precision", "recomputation")
class RepeatsInFloat32(Broken):
    """When activation checkpointing recomputes the forward pass, autocast is disabled."""

    def install(self) -> None:
        from torch.utils import checkpoint

        original = checkpoint._get_autocast_kwargs

        def autocast_options(device_type: str = "cuda") -> Any:
            device, host = original(device_type)
            return device and {**device, "enabled": False}, host

        checkpoint._get_autocast_kwargs = autocast_options


@mutant("precision", "weights that are cast once")
class CastsWithoutGradients(Broken):
    """Under autocast, ``linear`` uses a weight without its gradient if the weight was first used under ``no_grad`` in the same region."""

    def install(self) -> None:
        import torch

        linear, clear = torch.nn.functional.linear, torch.clear_autocast_cache
        has_gradient: dict[int, bool] = {}

        def cast(x: Any, weight: Any, bias: Any = None) -> Any:
            if torch.is_autocast_enabled("fake_xpu") and not has_gradient.setdefault(id(weight), torch.is_grad_enabled()):
                weight = weight.detach()
            return linear(x, weight, bias)

        def clear_all() -> None:
            has_gradient.clear()
            clear()

        torch.nn.functional.linear, torch.clear_autocast_cache = cast, clear_all  # type: ignore[assignment]
