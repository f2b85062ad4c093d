"""Gradients that are wrong only in some cases.

The gradients are wrong for some output gradients or inputs, on some devices, in training mode, or under ``no_grad``.
"""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken, changed, is_pure


@mutant("modules", "gradients of inputs")
class NormalisesWithoutInputGradient(Broken):
    """In training mode, the backward pass of batch_norm gives zeros as the gradient of the input."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        is_training = name.startswith("native_batch_norm_backward") and args[7]
        return (result[0] * 0, *result[1:]) if is_training else result


@mutant("autograd", "gradients of inputs")
class SoftmaxForgetsTheSum(Broken):
    """The backward pass of softmax gives zeros, which is right only if all output gradients are equal."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return changed(call(), lambda x: x * 0) if name.startswith("_softmax_backward") else call()


@mutant("autograd", "output gradients")
class ReadsOutputGradientsAsContiguous(Broken):
    """Backward kernels read a transposed output gradient as if it were contiguous."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if "_backward" in name and is_pure(func) and isinstance(args[0], torch.Tensor) and 0 not in args[0].stride():
            dense = torch.as_strided(args[0], args[0].shape, torch.empty(args[0].shape, device="meta").stride())
            return func(dense, *args[1:], **kwargs)
        return call()


@mutant("autograd", "output gradients")
class DividesByOutputGradients(Broken):
    """Backward kernels of activations divide their result by the largest absolute output gradient, and then multiply by it again.
    If all output gradients are zero, the result is NaN.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("gelu_backward", "sigmoid_backward", "tanh_backward", "threshold_backward") and args[0].numel():
            largest = args[0].abs().max()
            return changed(call(), lambda x: x / largest * largest)
        return call()


@mutant("autograd", "another device")
class DifferentiatesOnTheFirstDevice(Broken):
    """Backward kernels give zeros on every device but the first."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        is_elsewhere = "_backward" in name and args[0].device.index not in (None, 0)
        return changed(result, lambda x: x * 0) if is_elsewhere else result


@mutant("autograd", "modes")
class RecordsWithoutGradients(Broken):
    """``mul`` and ``add`` record a graph under ``torch.no_grad``."""

    def install(self) -> None:
        import torch
        from torch.overrides import TorchFunctionMode

        class Records(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if getattr(func, "__name__", "") in ("mul", "add") and not torch.is_inference_mode_enabled():
                    with torch.enable_grad():
                        return func(*args, **(kwargs or {}))
                return func(*args, **(kwargs or {}))

        Records().__enter__()


@mutant("autograd", "subsets of gradients")
class SkipsBiasWithoutInputGradient(Broken):
    """The backward pass of a convolution returns a zero gradient for the bias if the input needs no gradient."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        is_affected = name == "convolution_backward" and not args[-1][0] and result[2] is not None
        return (*result[:2], result[2] * 0) if is_affected else result


@mutant("autograd", "subsets of gradients")
class LSTMForgetsTheCellState(Broken):
    """The backward pass of an LSTM step ignores the gradient of the cell state if the output of the step receives no gradient."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "_thnn_fused_lstm_cell_backward_impl" or args[0] is not None or args[1] is None:
            return call()
        return func(None, args[1] * 0, *args[2:], **kwargs)


@mutant("autograd", "subsets of gradients")
class SkipsGridWithoutImageGradient(Broken):
    """The backward pass of ``grid_sample`` returns a zero gradient for the grid if the image needs no gradient."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return (result[0], result[1] * 0) if name == "grid_sampler_2d_backward" and not args[-1][0] else result


@mutant("autograd", "repeated indices")
class LosesAliasedIndices(Broken):
    """``put`` with ``accumulate=True`` ignores a value at a non-negative index if a negative index refers to the same element."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name not in ("put", "put_") or not (args[3] if len(args) > 3 else kwargs.get("accumulate")):
            return call()
        index = args[1].flatten()
        is_lost = ((index[:, None] - args[0].numel()) == index).any(1)
        return func(args[0], index, args[2].flatten().masked_fill(is_lost, 0), True)


@mutant("autograd", "another device")
class CreatesOnTheFirstDevice(Broken):
    """In a backward pass, a tensor that is created without a device index is on device 0, whatever device the gradients are on."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import threading

        import torch

        device = kwargs.get("device")
        is_thread_of_autograd = isinstance(threading.current_thread(), threading._DummyThread)
        if is_thread_of_autograd and device is not None and device.type == "fake_xpu" and device.index is None:
            return func(*args, **{**kwargs, "device": torch.device("fake_xpu", 0)})
        return call()


@mutant("modules", "sums over rows")
class AddsUpTheFirst256Rows(Broken):
    """The gradients of the weight and the bias of ``layer_norm`` are sums over the first 256 rows only."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "native_layer_norm_backward" or args[3].numel() <= 256:
            return call()
        output_gradient, x, shape, mean, rstd, *others = args
        first = (one.reshape(-1, *shape)[:256] for one in (output_gradient, x))
        statistics = (one.reshape(-1, *[1] * len(shape))[:256] for one in (mean, rstd))
        return call()[0], *func(*first, shape, *statistics, *others)[1:]


@mutant("autograd", "many planes", check="many_planes")
class LeavesOutLatePlanes(Broken):
    """The gradient of reflection padding is zero for rows after the first 65,535."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "reflection_pad1d_backward":
            result.view(-1, result.shape[-1])[65_535:] = 0
        return result


@mutant("autograd", "many planes", check="many_channels")
class PoolsFewChannels(Broken):
    """The gradient of ``max_pool2d`` is zero for channels after the first 512 if the image is in channels_last."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name == "max_pool2d_with_indices_backward" and args[1].is_contiguous(memory_format=torch.channels_last):
            result[:, 512:] = 0
        return result


@mutant("arguments", "resampling", check="keyword_gradients")
class ExtendsTheBorder(Broken):
    """For a grid point at the last pixel of a row, the gradient of ``grid_sample`` is computed as if ``padding_mode`` were ``zeros``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name != "grid_sampler_2d_backward" or args[4] == 0 or not args[5] or not args[-1][1]:
            return result
        is_last = args[2][..., :1] == 1
        return result[0], func(*args[:4], 0, *args[5:])[1].where(is_last, result[1])
