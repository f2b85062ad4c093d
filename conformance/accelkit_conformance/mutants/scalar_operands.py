"""Operators that give wrong results for Python numbers, 0-d tensors, or operands of rare dtypes and values."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("operators", "exact results", check="near_limits")
class StepsDownwards(Broken):
    """``nextafter`` of a negative number returns the neighbour in the wrong direction."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        return torch.where(args[0] < 0, func(args[0], 2 * args[0] - args[1]), call()) if name == "nextafter" else call()


@mutant("operators", "exact results", check="near_limits")
class SubtractsFromZero(Broken):
    """``neg`` subtracts a number from 0, so that it loses the sign of zero."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return 0 - args[0] if name == "neg" and args[0].is_floating_point() else call()


@mutant("arguments", "kept from an earlier call")
class KeepsSixDecimals(Broken):
    """``clamp`` keeps a kernel for each bound, and finds it by the bound's first six decimals."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name not in ("clamp", "clamp_min", "clamp_"):
            return call()
        kept = self.__dict__.setdefault("kept", {})
        bounds = [kept.setdefault((name, place, f"{one:.6f}"), one) if isinstance(one, float) else one for place, one in enumerate(args)]
        return func(*bounds, **kwargs)


@mutant("arguments", "numbers as operands")
class RoundsOnes(Broken):
    """The difference of the number 1.0 and a tensor is rounded to an integer."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        is_hit = name == "rsub.Scalar" and args[1] == 1 and isinstance(args[1], float)
        return call().round() if is_hit and call().is_floating_point() else call()


@mutant("operators", "numbers as operands", check="overloads")
class SwapsShifts(Broken):
    """The left shift of a number by a tensor exchanges its operands: it shifts the tensor by the number."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        return torch.bitwise_left_shift(args[1], args[0]) if name == "bitwise_left_shift.Scalar_Tensor" else call()


@mutant("operators", "dtypes of three operands")
class TakesTheFirstDtype(Broken):
    """``addcmul`` of a float64 tensor and complex128 tensors discards imaginary parts."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        is_hit = name == "addcmul" and not args[0].is_complex() and args[0].element_size() == 8 and args[2].is_complex()
        return call().real if is_hit else call()


@mutant("layout", "0-d tensors on the CPU")
class DropsTheSignOfHostScalars(Broken):
    """``pow`` of integers on the device uses the absolute value of the exponent if the exponent is a tensor on the CPU."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        is_hit = name == "pow.Tensor_Tensor" and args[1].device.type == "cpu" and not args[0].is_floating_point()
        return func(args[0], args[1].abs()) if is_hit else call()


@mutant("arguments", "range of float16")
class MultipliesInFloat16(Broken):
    """``addcmul`` in float16 rounds the product to float16 before it adds the product."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        is_hit = name == "addcmul" and args[0].dtype is torch.float16
        return args[0] + args[1] * kwargs.get("value", 1) * args[2] if is_hit else call()


@mutant("arguments", "range of float16")
class ConvertsNumbersToFloat16(Broken):
    """``mul`` of a float16 tensor converts the other operand to float16 first."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name != "mul.Tensor" or not all(isinstance(one, torch.Tensor) for one in args) or args[0].dtype is not torch.float16:
            return call()
        return func(args[0], args[1].half()) if not args[1].ndim and args[1].is_floating_point() else call()


@mutant("arguments", "values to ignore")
class SkipsTheProduct(Broken):
    """With ``value=0``, ``addcmul`` and ``addcdiv`` return the addend, even if the product is NaN."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return args[0].clone() if name in ("addcmul", "addcdiv") and kwargs.get("value", 1) == 0 else call()


@mutant("operators", "parts of complex numbers", check="calls_outside_op_db")
class IgnoresImaginaryParts(Broken):
    """Logical operators consider purely imaginary numbers to be False."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if not name.startswith("logical_") or name.endswith("_") or kwargs:
            return call()
        return func(*(one.real.clone() if isinstance(one, torch.Tensor) and one.is_complex() else one for one in args))


@mutant("arguments", "parts of complex numbers")
class OverflowsInFloat64(Broken):
    """``abs`` of complex128 numbers squares their parts without scaling."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        return (args[0].real ** 2 + args[0].imag ** 2).sqrt() if name == "abs" and args[0].dtype is torch.complex128 else call()


@mutant("arguments", "parts of complex numbers")
class AcosOfSquares(Broken):
    """``acos`` of complex numbers is computed with a formula that squares the number."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "acos" or not args[0].is_complex():
            return call()
        return -1j * (args[0] + 1j * (1 - args[0] * args[0]).sqrt()).log()


@mutant("arguments", "sums of complex exponentials")
class AddsComplexExponentials(Broken):
    """``logcumsumexp`` of complex numbers does not subtract the maximum before it computes the exponentials."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        is_hit = name in ("logcumsumexp", "_logcumsumexp") and args[0].is_complex()
        return args[0].exp().cumsum(args[1]).log() if is_hit else call()


@mutant("arguments", "unsigned integers")
class ComparesAsSigned(Broken):
    """Conversions from uint16, uint32 and uint64 to float32 read the largest integers as negative ones."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
        if name != "_to_copy" or args[0].dtype not in signed or kwargs.get("dtype") is not torch.float32:
            return call()
        return func(args[0].view(signed[args[0].dtype]), **kwargs)


@mutant("arguments", "conversions to float8")
class FlushesFloat8(Broken):
    """Conversions from float32 to float8_e4m3fn give 0 instead of subnormal numbers, in every second element of tensors with more than
    4,096 elements."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name == "_to_copy" and args[0].dtype is torch.float32 and result.dtype is torch.float8_e4m3fn and result.numel() > 4096:
            codes = result.view(torch.uint8)
            codes[1::2].masked_fill_(args[0][1::2].abs() < 2.0**-6, 0)
        return result


@mutant("layout", "bytes of bools")
class AddsBytesOfBools(Broken):
    """Conversions from bool to integers copy the byte of each element, whether it is 0, 1 or another number."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        is_hit = name == "_to_copy" and args[0].dtype is torch.bool and kwargs.get("dtype") in (torch.int32, torch.uint8)
        return func(args[0].contiguous().view(torch.uint8), **kwargs) if is_hit else call()


@mutant("operators", "dtypes of results", check="out_dtypes")
class ConvertsLongOperands(Broken):
    """``fmin`` and ``fmax`` of int64 tensors with ``out=`` convert their operands, not the result, to the dtype of ``out``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        is_hit = name in ("fmin.out", "fmax.out") and args[0].dtype is torch.int64
        return func(*(one.to(kwargs["out"].dtype) for one in args), **kwargs) if is_hit else call()


@mutant("layout", "layouts of integers", check="noncontiguous_inputs")
class IgnoresGapsBetweenIntegers(Broken):
    """``le`` and ``abs`` of int16 and int64 tensors read the first elements of the storage if there are gaps between the elements."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        def packed(one: Any) -> Any:
            is_hit = isinstance(one, torch.Tensor) and one.dtype in (torch.int16, torch.int64) and not one.is_contiguous() and one.numel()
            return torch.empty(0, dtype=one.dtype, device=one.device).set_(one.untyped_storage(), 0, one.shape) if is_hit else one

        return func(*map(packed, args), **kwargs) if name in ("le.Tensor", "abs") else call()


@mutant("layout", "views of single elements", check="narrow_views")
class ClearsTwoWords(Broken):
    """``zero_`` of a 0-d view of a tensor of four-byte elements also clears the next element."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "zero_" and not args[0].ndim and args[0].element_size() == 4 and args[0].untyped_storage().nbytes() > 8:
            args[0].as_strided((2,), (1,)).zero_()
        return call()


@mutant("layout", "0-d tensors on the CPU")
class SwapsHostScalars(Broken):
    """``remainder`` and ``fmod`` take a tensor on the CPU as the divisor, even if it is the first operand."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(args[1], args[0]) if name in ("remainder.Tensor", "fmod.Tensor") and args[0].device.type == "cpu" else call()
