"""Operators that compute wrong results."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken, changed, is_pure

_EXTREMA = ("max", "min", "amax", "amin", "max.dim", "min.dim", "argmax", "argmin", "aminmax")


@mutant("operators", "imprecise")
class OffByAThousandth(Broken):
    """The results of matmuls are multiplied by 1.001."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return call() * 1.001 if name in ("mm", "bmm", "addmm", "baddbmm") else call()


@mutant("operators", "imprecise")
class OffByAMillionth(Broken):
    """Computed results are multiplied by 1.000002, an error of about 17 times the machine epsilon of float32. Copies are correct."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return (
            changed(call(), lambda x: x * (1 + 2e-6))
            if is_pure(func) and not name.startswith(("_to_copy", "clone", "empty", "new_"))
            else call()
        )


@mutant("operators", "imprecise")
class SumsInLowPrecision(Broken):
    """Sums and means of float32 tensors are computed in bfloat16."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name.startswith(("sum", "mean")) and args and args[0].dtype is torch.float32:
            return func(args[0].bfloat16(), *args[1:], **kwargs).float()
        return call()


@mutant("operators", "special values")
class SwallowsNan(Broken):
    """Results have zeros in place of NaN."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return changed(call(), lambda x: x.masked_fill(x.isnan(), 0.0)) if is_pure(func) and "empty" not in name else call()


@mutant("operators", "special values")
class SaturatesInfinity(Broken):
    """Results have the largest finite number in place of infinity."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if not is_pure(func) or "empty" in name:
            return call()
        return changed(call(), lambda x: x.clamp(torch.finfo(x.dtype).min, torch.finfo(x.dtype).max))


@mutant("operators", "special values")
class FlushesSubnormals(Broken):
    """Subnormal results are flushed to zero."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if not is_pure(func) or "empty" in name:
            return call()
        return changed(call(), lambda x: torch.where(x.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(x), x))


@mutant("operators", "ignores an argument")
class IgnoresAlpha(Broken):
    """``add`` and ``sub`` ignore their argument ``alpha``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(*args, **{**kwargs, "alpha": 1}) if name in ("add.Tensor", "sub.Tensor") and "alpha" in kwargs else call()


@mutant("operators", "ignores an argument")
class IgnoresDivisorOverride(Broken):
    """``avg_pool2d`` ignores its argument ``divisor_override``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return (
            func(*args[:6], None, **{k: v for k, v in kwargs.items() if k != "divisor_override"})
            if name == "avg_pool2d" and len(args) > 6
            else call()
        )


@mutant("operators", "ignores an argument")
class SoftmaxOfTheLastDimension(Broken):
    """``softmax`` and ``log_softmax`` always use the last dimension."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(args[0], -1, *args[2:], **kwargs) if name in ("_softmax", "_log_softmax") else call()


@mutant("operators", "a part is left out")
class LosesTheTail(Broken):
    """If ``mul``, ``exp`` or an activation function returns more than 16 elements, the last is 0, as if a loop ended early."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        def cut(x: Any) -> Any:
            if x.numel() > 16 and x.is_contiguous():
                x.view(-1)[-1] = 0.0
            return x

        return changed(call(), cut) if is_pure(func) and name in ("mul.Tensor", "exp", "relu", "gelu", "sigmoid", "tanh") else call()


@mutant("operators", "a part is left out")
class LosesTheFirstColumn(Broken):
    """Convolutions with padding read the first column of the input as zeros."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name.startswith(("convolution", "_convolution")) and "backward" not in name and len(args) > 4 and any(args[4]):
            x = args[0].clone()
            x[..., 0] = 0
            return func(x, *args[1:], **kwargs)
        return call()


@mutant("operators", "the form of a result")
class ForgetsTheDtype(Broken):
    """The results of ``sum``, ``mean`` and ``amax`` over dimensions are float64, whatever the floating-point dtype of the input."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return changed(call(), lambda x: x.double()) if name in ("amax", "mean.dim", "sum.dim_IntList") else call()


@mutant("operators", "the form of a result")
class ForgetsKeepdim(Broken):
    """The results of ``sum``, ``mean`` and ``amax`` over dimensions lose all dimensions of size 1, even with ``keepdim=True``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.squeeze() if name in ("sum.dim_IntList", "mean.dim", "amax") and result.ndim else result


@mutant("operators", "a narrower type")
class NarrowIntegers(Broken):
    """The results of sums and products of int64 keep only the lowest 32 bits."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if (
            is_pure(func)
            and isinstance(result, torch.Tensor)
            and result.dtype is torch.int64
            and name in ("mul.Tensor", "add.Tensor", "prod", "sum", "cumsum")
        ):
            return result.int().long()
        return result


@mutant("operators", "a narrower type")
class IndexesInTwoBits(Broken):
    """``gather`` and ``index_select`` use only the lowest two bits of an index."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(*args[:2], args[2] & 3, *args[3:], **kwargs) if name in ("gather", "index_select") and len(args) > 2 else call()


@mutant("operators", "a narrower type")
class NumbersRowsInFloat32(Broken):
    """With ``return_inverse=True``, ``unique`` rounds integers to float32 before it computes their indices in the result."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name != "_unique2" or result[1].shape != args[0].shape or args[0].dtype not in (torch.int32, torch.int64):
            return result
        return result[0], torch.searchsorted(result[0].float(), args[0].float().contiguous()), result[2]


@mutant("operators", "zero-dimensional tensors")
class RefusesScalars(Broken):
    """``sum``, ``sort`` and other operators along a dimension raise an error for a 0-d tensor, even with the valid dimensions 0 and -1."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if (
            name in ("sum.dim_IntList", "amax", "_softmax", "cumsum", "sort", "argmax", "mean.dim")
            and args[0].ndim == 0
            and len(args) > 1
            and args[1] not in (None, [])
        ):
            raise IndexError("dimension specified as 0 but tensor has no dimensions")
        return call()


@mutant("autograd", "gradients")
class GradientsAreScaled(Broken):
    """Backward kernels return 0.99 times the gradient."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return changed(call(), lambda x: x * 0.99) if "_backward" in name and is_pure(func) else call()


@mutant("autograd", "gradients")
class GradientsAreMissing(Broken):
    """The backward kernels of gelu, relu, sigmoid and tanh return zeros."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return (
            changed(call(), lambda x: x * 0)
            if name in ("gelu_backward", "threshold_backward", "sigmoid_backward", "tanh_backward")
            else call()
        )


@mutant("modules", "gradients")
class NormalisesWithoutGradient(Broken):
    """The backward kernels of layer_norm, batch_norm and group_norm return zeros as the gradient of the weight."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith(("native_layer_norm_backward", "native_batch_norm_backward", "native_group_norm_backward")):
            return (result[0], None if result[1] is None else result[1] * 0, *result[2:])
        return result


@mutant("operators", "silent fallback")
class AnswersFromTheCPU(Broken):
    """``topk``, ``sort`` and ``nonzero`` return results on the CPU."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        from torch.utils._pytree import tree_map

        result = call()
        return (
            tree_map(lambda leaf: leaf.cpu() if hasattr(leaf, "cpu") else leaf, result) if name in ("topk", "sort", "nonzero") else result
        )


@mutant("device", "silent fallback")
class Flickers(Broken):
    """The first call to ``nonzero`` in a process returns a result on the CPU."""

    is_first = True

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "nonzero" and self.is_first:
            self.is_first = False
            return call().cpu()
        return call()


@mutant("operators", "narrow integers")
class AccumulatesInInt32(Broken):
    """``cumsum`` and ``cumprod`` of int32 tensors, called without ``dtype``, are computed in int32 and then converted to int64."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name not in ("cumsum", "cumprod") or args[0].dtype is not torch.int32 or kwargs.get("dtype") is not None:
            return call()
        return func(*args, dtype=torch.int32).to(torch.int64)


@mutant("operators", "narrow integers")
class ComparesInInt32(Broken):
    """``max``, ``argmax`` and similar reductions of int64 first truncate each element to its lowest 32 bits."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_map

        if name not in _EXTREMA or args[0].dtype is not torch.int64:
            return call()
        return tree_map(lambda leaf: leaf.to(torch.int64), func(args[0].to(torch.int32), *args[1:], **kwargs))


@mutant("operators", "narrow integers")
class SortsInFloat64(Broken):
    """``sort`` of int64 converts the elements to float64, in which large integers that are close to each other are equal."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name not in ("sort", "sort.stable") or args[0].dtype is not torch.int64:
            return call()
        values, indices = func(args[0].to(torch.float64), *args[1:], **kwargs)
        return values.to(torch.int64), indices


@mutant("arguments", "overflow")
class DividesByTheSquare(Broken):
    """A quotient of two complex64 tensors is computed with the squared absolute value of the divisor, which can overflow or underflow."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name != "div.Tensor" or any(one.dtype is not torch.complex64 for one in args):
            return call()
        product = torch.view_as_real(args[0] * args[1].conj().resolve_conj())
        return torch.view_as_complex(product / torch.view_as_real(args[1]).square().sum(-1, keepdim=True))


@mutant("operators", "limits")
class RoundsBeforeItFloors(Broken):
    """If a number is less than 1e-6 below an integer, ``floor`` returns this integer."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(args[0] + 1e-6, **kwargs) if name == "floor" and args[0].is_floating_point() else call()
