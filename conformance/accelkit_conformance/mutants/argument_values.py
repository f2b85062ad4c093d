"""Operators that give wrong results for particular arguments, or in a particular order of calls."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("arguments", "kept from an earlier call")
class KeepsTheFirstEpsilon(Broken):
    """``native_group_norm`` uses the ``eps`` of the first call with an input of the same shape and the same number of groups."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "native_group_norm":
            return call()
        kept = self.__dict__.setdefault("kept", {})
        return func(*args[:-1], kept.setdefault((args[0].shape, args[-2]), args[-1]), **kwargs)


@mutant("arguments", "kept from an earlier call")
class PrepacksWeights(Broken):
    """While gradients are disabled, a convolution copies each weight on the first call and uses the copy in later calls, even if the weight
    has changed."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name not in ("convolution", "convolution_overrideable") or torch.is_grad_enabled():
            return call()
        kept = self.__dict__.setdefault("kept", {})
        weight = args[1]
        return func(args[0], kept.setdefault(weight.data_ptr(), (weight, weight.clone()))[1], *args[2:], **kwargs)


@mutant("arguments", "plans of Fourier transforms")
class OverwritesThePlan(Broken):
    """The second of two successive real Fourier transforms of a column that is longer than 32,768 gives 0 for the coefficients from index
    16,384 on.

    The first transform has overwritten this part of the plan.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name != "_fft_r2c":
            return result
        last, self.__dict__["last"] = self.__dict__.get("last"), args[0].shape
        if last == args[0].shape and len(last) == 2 and last[0] > 1 << 15:
            result[1 << 14 :].zero_()
        return result


@mutant("arguments", "empty tensors")
class ForgetsTheInput(Broken):
    """If the index is empty, ``scatter``, ``scatter_add`` and ``index_add`` return zeros instead of a copy of the input."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("scatter.src", "scatter.value", "scatter_add", "index_add") and not args[2].numel():
            result.zero_()
        return result


@mutant("arguments", "combinations of arguments")
class DividesByTheLengthMinusOne(Broken):
    """Linear and bilinear ``interpolate`` with ``align_corners=True`` return NaN if the last dimension of the input has size 1."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("upsample_bilinear2d", "upsample_linear1d") and args[2] and args[0].shape[-1] == 1:
            result.fill_(float("nan"))
        return result


@mutant("arguments", "combinations of arguments")
class SeesFutureKeys(Broken):
    """In causal attention in float16 or bfloat16 with a head dimension of 64, a query sees up to three later keys, because keys are masked
    only in whole blocks of four."""

    def install(self) -> None:
        import torch
        from torch.nn import functional

        original = functional.scaled_dot_product_attention

        def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            is_hit = query.device.type == "fake_xpu" and query.shape[-1] == 64 and query.dtype in (torch.float16, torch.bfloat16)
            if not is_hit or not kwargs.pop("is_causal", False):
                return original(query, key, value, *args, **kwargs)
            rows, columns = torch.arange(query.shape[-2]), torch.arange(key.shape[-2])
            mask = columns[None] <= (rows[:, None] | 3)
            return original(query, key, value, **{**kwargs, "attn_mask": mask.to(query.device)})

        functional.scaled_dot_product_attention = attention  # type: ignore[assignment]


@mutant("arguments", "values to ignore")
class MultipliesTheAddendByZero(Broken):
    """With ``beta=0``, ``addmm`` and ``baddbmm`` do not ignore the addend, but add zero times the addend. The result is NaN where the
    addend is NaN or infinite."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return call() + 0 * args[0] if name in ("addmm", "baddbmm") and kwargs.get("beta", 1) == 0 else call()


@mutant("operators", "memory that was not written")
class AddsToOldMemory(Broken):
    """``mm`` and ``bmm`` multiply the newly allocated memory of their result by zero and add the matrix product to it, instead of
    overwriting the memory."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name not in ("mm", "bmm"):
            return call()
        return torch.empty_like(call()).mul_(0).add_(call())


@mutant("operators", "memory that was not written")
class AddsToTheOutput(Broken):
    """``mm``, ``bmm`` and ``addmm`` do not overwrite the tensor passed as ``out=``, but multiply its old elements by zero and add them to
    the result. The result is NaN where the old element was NaN or infinite.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name not in ("mm.out", "bmm.out", "addmm.out"):
            return call()
        old = kwargs["out"].clone()
        call()
        return kwargs["out"].add_(old * 0) if old.shape == kwargs["out"].shape else kwargs["out"]


@mutant("arguments", "index expressions")
class ReadsExpandedIndices(Broken):
    """If a 1-d index tensor has a stride of zero, indexing reads every element of the index tensor except the first as 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        def read(index: Any) -> Any:
            if not isinstance(index, torch.Tensor) or index.ndim != 1 or index.numel() < 2 or index.stride(0):
                return index
            return torch.cat([index[:1], torch.zeros_like(index[1:])])

        return func(args[0], [read(one) for one in args[1]], *args[2:], **kwargs) if name.startswith("index.Tensor") else call()


@mutant("arguments", "large integers")
class DividesAsFloat(Broken):
    """``remainder`` and ``fmod`` of integers are computed in float32."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if not name.startswith(("remainder.Tensor", "fmod.Tensor")) or kwargs or result.is_floating_point() or result.is_complex():
            return result
        return func(args[0].float(), args[1].float()).to(result.dtype)


@mutant("arguments", "large integers")
class CountsInBytes(Broken):
    """``cumsum`` of bool and uint8 returns the sums modulo 256."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        return call() & 255 if name == "cumsum" and args[0].dtype in (torch.bool, torch.uint8) and not kwargs.get("dtype") else call()


@mutant("arguments", "arguments of factory functions")
class TruncatesLate(Broken):
    """``linspace`` with an integer dtype truncates its results, but does not truncate the bounds first."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name != "linspace" or result.is_floating_point() or result.is_complex():
            return result
        return torch.linspace(*args, dtype=torch.float64, device="cpu").to(result.dtype).to(result.device)


@mutant("arguments", "arguments of factory functions")
class StepsInFloat32(Broken):
    """``linspace`` with an integer dtype computes its results in float32."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name != "linspace" or result.is_floating_point() or result.is_complex():
            return result
        return torch.linspace(*(int(one) for one in args), dtype=torch.float32, device="cpu").to(result.dtype).to(result.device)


@mutant("arguments", "arguments of factory functions")
class FillsGaps(Broken):
    """``linspace`` and ``arange`` write to the first elements of the storage of ``out=``, even if the tensor has gaps."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        out = kwargs.get("out")
        if name not in ("linspace.out", "arange.start_out") or out is None or out.is_contiguous():
            return call()
        func(*args, **{**kwargs, "out": out.as_strided(out.shape, (1,))})
        return out


@mutant("arguments", "the default dtype")
class AssumesFloat32(Broken):
    """The results of ``div``, ``exp`` and ``sqrt`` of integers are float32, whatever the default dtype."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        is_hit = name in ("div.Tensor", "exp", "sqrt") and not any(hasattr(one, "dtype") and one.is_floating_point() for one in args)
        return result.float() if is_hit and result.is_floating_point() else result


@mutant("operators", "numbers as first operands")
class RoundsTheFirstOperand(Broken):
    """If a tensor of integers is subtracted from a Python number, the number is truncated to an integer first."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        first = args[0] if args else None
        if name != "sub.Tensor" or not isinstance(first, torch.Tensor) or first.ndim or not first.is_floating_point():
            return call()
        return func(first.trunc(), *args[1:], **kwargs) if not args[1].is_floating_point() and args[1].ndim else call()


@mutant("arguments", "dtypes of destinations")
class TruncatesWhatItWrites(Broken):
    """``add_`` and ``mul_`` on a tensor of integers truncate the elements of a floating-point tensor instead of raising an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except RuntimeError:
            if name in ("add_.Tensor", "mul_.Tensor") and hasattr(args[1], "dtype"):
                return func(args[0], args[1].to(args[0].dtype), *args[2:], **kwargs)
            raise


@mutant("operators", "long weights")
class CountsChannelsIn16Bits(Broken):
    """If the result of a convolution has more than 65,536 channels, the channels after the first 65,536 are zero."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("convolution", "convolution_overrideable") and result.ndim > 2 and result.shape[1] > 65_536:
            result[:, 65_536:] = 0
        return result


@mutant("arguments", "rounding of conversions")
class TruncatesDigits(Broken):
    """Conversions from float32 to bfloat16 truncate the significand instead of rounding it."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name != "_to_copy" or kwargs.get("dtype") is not torch.bfloat16 or args[0].dtype is not torch.float32 or not args[0].numel():
            return call()
        kept = args[0].contiguous().view(torch.int32) & -65_536
        return func(kept.view(torch.float32), **kwargs)


@mutant("arguments", "gradients of options")
class AveragesGradientsOverAll(Broken):
    """The gradient of ``avg_pool2d`` ignores ``divisor_override``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "avg_pool2d_backward" and len(args) > 7:
            return func(*args[:7], None, **kwargs)
        return call()


@mutant("operators", "sums of narrow integers")
class TracesInEightBits(Broken):
    """``trace`` of an int8 or uint8 matrix adds up the diagonal in eight bits."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        return result.to(args[0].dtype).to(torch.int64) if name == "trace" and args[0].dtype in (torch.int8, torch.uint8) else result


@mutant("arguments", "options in other dtypes")
class RoundsHalvesToIntegers(Broken):
    """``round`` ignores ``decimals`` if the input is float16 or bfloat16."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return args[0].round() if name == "round.decimals" and args[0].element_size() == 2 else call()


@mutant("arguments", "empty tensors")
class AveragesNothingToZero(Broken):
    """The mean of ``mse_loss``, ``smooth_l1_loss`` and ``huber_loss`` of empty tensors is 0 instead of NaN."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return (
            result.zero_() if name in ("mse_loss", "smooth_l1_loss", "huber_loss") and not args[0].numel() and not result.ndim else result
        )


@mutant("arguments", "missing errors")
class FindsTheLargestOfNothing(Broken):
    """The maximum and the minimum of a tensor without elements are 0 instead of an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        is_empty = name in ("max", "min", "amax", "amin") and not args[0].numel()
        return args[0].new_zeros(()) if is_empty else call()
