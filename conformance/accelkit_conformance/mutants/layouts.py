"""Kernels that read from or write to the wrong places in memory."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken, is_pure

_AFFECTED = ("add.Tensor", "mul.Tensor", "exp", "relu", "sum", "mm", "neg", "abs", "sigmoid", "_softmax", "mean", "tanh", "sqrt")


def _read_as_if(x: Any, offset: bool) -> Any:
    """Return a view with the elements that a faulty kernel reads in place of the elements of ``x``.

    If ``offset`` is True, the kernel ignores the storage offset of ``x``. Otherwise, the kernel ignores the strides of ``x``.
    """
    import torch

    if not isinstance(x, torch.Tensor) or x.device.type != "fake_xpu" or x.numel() < 2:
        return x
    start = 0 if offset else x.storage_offset()
    contiguous = torch.empty(x.shape, device="meta").stride()
    room = x.untyped_storage().nbytes() // x.element_size() - start
    if offset:
        return torch.as_strided(x, x.shape, x.stride(), 0)
    return torch.as_strided(x, x.shape, contiguous, start) if room >= x.numel() else x


@mutant("layout", "addressing")
class IgnoresStrides(Broken):
    """Kernels of common operators, such as ``add`` and ``exp``, read the first input as if it were contiguous."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(_read_as_if(args[0], offset=False), *args[1:], **kwargs) if name in _AFFECTED else call()


@mutant("layout", "addressing")
class IgnoresOffsets(Broken):
    """Kernels of common operators, such as ``add`` and ``exp``, read the first input from the start of its storage."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(_read_as_if(args[0], offset=True), *args[1:], **kwargs) if name in _AFFECTED else call()


@mutant("layout", "addressing")
class ReadsExpandedAsDense(Broken):
    """If the first input of an operator is expanded along dimension 0, the operator reads zeros in place of all rows but the first."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if (
            is_pure(func)
            and args
            and hasattr(args[0], "stride")
            and args[0].ndim > 1
            and args[0].stride(0) == 0
            and args[0].is_floating_point()
            and args[0].shape[0] > 1
        ):
            x = args[0].clone()
            x[1:] = 0
            return func(x, *args[1:], **kwargs)
        return call()


@mutant("layout", "writes beside")
class WritesPastTheEnd(Broken):
    """``fill_``, ``zero_``, ``add_`` and ``mul_`` on a slice also write the element after the slice."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        x = args[0] if args else None
        if (
            name in ("fill_.Scalar", "zero_", "add_.Tensor", "mul_.Tensor")
            and isinstance(x, torch.Tensor)
            and x.ndim == 1
            and x.is_contiguous()
        ):
            end = x.storage_offset() + x.numel()
            if x.numel() > 1 and end < x.untyped_storage().nbytes() // x.element_size():
                torch.as_strided(x, (1,), (1,), end).copy_(torch.ones(1))
        return call()


@mutant("layout", "writes beside")
class WritesIntoACopy(Broken):
    """``add_``, ``mul_`` and ``fill_`` on a strided view write to a contiguous copy of the view instead of the view itself."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("add_.Tensor", "mul_.Tensor", "fill_.Scalar") and args[0].numel() > 1 and not args[0].is_contiguous():
            func(args[0].contiguous(), *args[1:], **kwargs)
            return args[0]
        return call()


@mutant("layout", "memory formats")
class ForgetsChannelsLast(Broken):
    """``clone``, ``add``, ``mul`` and ``relu`` return contiguous results for channels_last inputs."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name in ("clone", "add.Tensor", "relu", "mul.Tensor") and result.ndim == 4 and not kwargs.get("memory_format"):
            return result.contiguous(memory_format=torch.contiguous_format)
        return result


@mutant("layout", "writes beside")
class UsesItsInputAsWorkspace(Broken):
    """Kernels of common operators, such as ``add`` and ``exp``, write into the memory between the elements of a strided input."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in _AFFECTED and args[0].ndim == 1 and args[0].numel() > 1 and args[0].stride(0) == 2:
            args[0].as_strided((args[0].numel() - 1,), (2,), args[0].storage_offset() + 1).zero_()
        return result


@mutant("layout", "memory formats")
class ReadsOthersInTheFirstFormat(Broken):
    """If the first input of ``mul`` is in channels_last, ``mul`` reads a contiguous second input as if that input were in channels_last."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        first, *others = args
        if name != "mul.Tensor" or first.ndim != 4 or first.is_contiguous() or not first.is_contiguous(memory_format=torch.channels_last):
            return call()
        if not isinstance(others[0], torch.Tensor) or others[0].shape != first.shape or not others[0].is_contiguous():
            return call()
        return func(first, others[0].as_strided(first.shape, first.stride()))


@mutant("layout", "memory formats")
class FlipsOneChannelKernels(Broken):
    """A transposed convolution with one input channel mirrors its weights along the width if they are in channels_last."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        is_affected = name == "convolution" and args[1].ndim == 4 and args[6] and args[1].shape[0] == 1 and args[1].stride(3) != 1
        return func(args[0], args[1].flip(-1), *args[2:], **kwargs) if is_affected else call()


@mutant("layout", "alignment")
class ReadsFromAlignedAddresses(Broken):
    """``relu`` and ``exp`` round the storage offset of a contiguous input down to a multiple of 4, so they read from the wrong address."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        x = args[0]
        if name not in ("relu", "exp") or not x.is_contiguous() or not x.storage_offset() % 4:
            return call()
        return func(x.as_strided(x.shape, x.stride(), x.storage_offset() // 4 * 4), *args[1:], **kwargs)


@mutant("layout", "conversions")
class ConvertsToContiguous(Broken):
    """If a transposed or channels_last tensor is converted to another dtype on the same device, the result is contiguous."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        is_affected = name == "_to_copy" and result.dtype != args[0].dtype and result.device == args[0].device
        is_affected &= kwargs.get("memory_format") in (None, torch.preserve_format) and result.layout is torch.strided
        return result.contiguous() if is_affected else result


@mutant("layout", "conversions")
class CreatesContiguous(Broken):
    """``zeros_like`` and ``ones_like`` return a contiguous tensor for a transposed or channels_last tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return call().contiguous() if name in ("zeros_like", "ones_like") and args[0].ndim else call()


@mutant("layout", "scalars on the CPU")
class ReadsTheFirstElementOnTheCPU(Broken):
    """``add`` and ``mul`` ignore the storage offset of a 0-d tensor on the CPU if the other operand is on the device."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name not in ("add.Tensor", "mul.Tensor", "add_.Tensor", "mul_.Tensor"):
            return call()
        import torch

        def read(one: Any) -> Any:
            is_affected = isinstance(one, torch.Tensor) and one.device.type == "cpu" and one.ndim == 0
            return one.as_strided((), (), 0) if is_affected else one

        return func(*map(read, args), **kwargs)


@mutant("layout", "alignment")
class FillsAlignedBytes(Broken):
    """``fill_`` of a contiguous view with one-byte elements starts too early: at the view's offset, rounded down to a multiple of four."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        view = args[0] if args else None
        if not name.startswith("fill_.") or view.element_size() > 1 or not view.is_contiguous() or not view.storage_offset() % 4:
            return call()
        func(view.as_strided(view.shape, view.stride(), view.storage_offset() // 4 * 4), *args[1:], **kwargs)
        return view


@mutant("layout", "expanded operands")
class SumsOneColumn(Broken):
    """If the second matrix is a single expanded row, ``mm`` uses only the first column of the first matrix."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "mm" and args[1].stride(0) == 0 and len(args[1]) > 1:
            return func(args[0][:, :1], args[1][:1], **kwargs)
        return call()


@mutant("layout", "offsets of images")
class PoolsFromTheStart(Broken):
    """``max_pool2d`` reads images in channels_last from the start of their storage, whatever their offset is."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name == "max_pool2d_with_indices" and args[0].ndim == 4 and args[0].is_contiguous(memory_format=torch.channels_last):
            return func(args[0].as_strided(args[0].shape, args[0].stride(), 0), *args[1:], **kwargs)
        return call()


@mutant("layout", "offsets of images")
class IgnoresTheChannelStride(Broken):
    """``conv2d`` reads some channels of an image in channels_last as if the image had no other channels."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        x = args[0] if name in ("convolution", "convolution_overrideable") else None
        if x is not None and x.ndim == 4 and x.stride(1) == 1 and x.stride(3) > x.shape[1] > 1:
            _, channels, height, width = x.shape
            dense = x.as_strided(x.shape, (height * width * channels, 1, width * channels, channels), x.storage_offset())
            return func(dense, *args[1:], **kwargs)
        return call()


@mutant("layout", "views of views", check="noncontiguous_inputs")
class ForgetsTheBase(Broken):
    """``mean`` of a view that was taken out of a tensor with more dimensions starts at the tensor's first element."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        base = args[0]._base if name == "mean.dim" else None
        if base is not None and base.ndim > args[0].ndim:
            return func(args[0].as_strided(args[0].shape, args[0].stride(), 0), *args[1:], **kwargs)
        return call()


@mutant("layout", "views in inference mode", check="views_in_inference_mode")
class RefusesOlderViews(Broken):
    """``reshape`` raises an error under ``inference_mode`` if its argument is not contiguous and not an inference tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        is_old = name == "reshape" and not args[0].is_inference()
        if is_old and torch.is_inference_mode_enabled() and not args[0].is_contiguous():
            raise RuntimeError("Cannot set version_counter for inference tensor")
        return call()
