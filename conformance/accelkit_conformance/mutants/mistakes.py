"""Devices that do not report a user's mistake, or report it wrongly."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("errors", "swallowed errors")
class SwallowsFactorisations(Broken):
    """A Cholesky factorisation or an inversion that fails does not report its failure."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith(("linalg_cholesky_ex", "linalg_inv_ex")):
            result[-1].zero_()
        return result


@mutant("errors", "swallowed errors")
class BroadcastsAnything(Broken):
    """``add`` and ``mm`` of tensors whose shapes do not match return a copy of the first tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except RuntimeError:
            if name in ("add.Tensor", "mm"):
                return args[0].clone()
            raise


@mutant("device", "swallowed errors")
class MovesSilently(Broken):
    """``add`` and ``mm`` silently copy operands from the CPU to the device."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name in ("add.Tensor", "mm"):
            place = next(one.device for one in args if isinstance(one, torch.Tensor) and one.device.type == "fake_xpu")
            return func(*(one.to(place) if isinstance(one, torch.Tensor) else one for one in args), **kwargs)
        return call()


@mutant("errors", "wrong errors")
class RaisesItsOwnErrors(Broken):
    """Every RuntimeError of a kernel is replaced by an OSError."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise OSError(f"driver status 7: {error}") from None


@mutant("errors", "operands on two devices")
class MovesIndicesSilently(Broken):
    """``index_select`` and ``gather`` silently copy indices that are on another device of the same type."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_map_only

        if not name.startswith(("index_select", "gather")):
            return call()
        place = args[0].device
        return func(*tree_map_only(torch.Tensor, lambda one: one.to(place) if one.device.type == place.type else one, args), **kwargs)


@mutant("errors", "batches of matrices")
class ChecksTheFirstMatrix(Broken):
    """Only the first matrix of a batch is checked: no error is raised if a later matrix is singular or not positive definite."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith(("linalg_cholesky_ex", "linalg_inv_ex", "linalg_lu_factor_ex", "_linalg_solve_ex")):
            result[-1].view(-1)[1:].zero_()
        return result


@mutant("errors", "numbers")
class WrapsNumbers(Broken):
    """If a number does not fit into the dtype of a tensor, ``fill_`` leaves the tensor unchanged instead of raising an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except RuntimeError:
            if name == "fill_.Scalar":
                return args[0]
            raise


@mutant("operators", "dtypes of out=", check="out")
class KeepsWhatDoesNotFit(Broken):
    """``hypot`` with an integer tensor as ``out=`` leaves this tensor unchanged instead of raising an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except RuntimeError:
            if name == "hypot.out":
                return kwargs["out"]
            raise


@mutant("errors", "unchecked arguments")
class ConvertsOperands(Broken):
    """``bmm``, ``addmm`` and ``linalg_solve_triangular`` convert tensors of other dtypes to the dtype of the first argument."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name not in ("bmm", "addmm", "linalg_solve_triangular"):
            return call()
        return func(*(one.to(args[0].dtype) if isinstance(one, torch.Tensor) else one for one in args), **kwargs)


@mutant("errors", "unchecked arguments")
class PoolsWithoutAStride(Broken):
    """``avg_pool2d`` and ``max_pool2d_with_indices`` use the kernel size as the stride if the stride is 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("avg_pool2d", "max_pool2d_with_indices") and len(args) > 2 and 0 in args[2]:
            return func(*args[:2], args[1], *args[3:], **kwargs)
        return call()


@mutant("errors", "unchecked arguments")
class ReadsOtherMemory(Broken):
    """``linalg_solve_triangular`` reads zeros if its second argument is on the CPU."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "linalg_solve_triangular" and args[1].device.type == "cpu":
            return func(args[0], args[1].new_zeros(args[1].shape, device=args[0].device), *args[2:], **kwargs)
        return call()


@mutant("errors", "sizes of windows", check="invalid_arguments")
class PadsAnyOutput(Broken):
    """Transposed convolutions accept any ``output_padding``, and append zeros."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name != "convolution" or not args[6] or all(one < step for one, step in zip(args[7], args[3], strict=True)):
            return call()
        result = func(*args[:7], [0] * len(args[7]), *args[8:], **kwargs)
        return torch.nn.functional.pad(result, [one for number in reversed(args[7]) for one in (0, number)])


@mutant("errors", "sizes of windows", check="invalid_arguments")
class FoldsTooFewBlocks(Broken):
    """``fold`` of fewer blocks than its result needs returns zeros instead of raising an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except RuntimeError:
            if name != "col2im":
                raise
            return args[0].new_zeros((*args[0].shape[:-2], args[0].shape[-2] // (args[2][0] * args[2][1]), *args[1]))


@mutant("errors", "shapes that do not fit", check="changed_calls")
class DropsADimension(Broken):
    """``trace``, ``upsample_nearest2d`` and ``im2col`` accept an argument with one dimension too many if it is a leading one of length 1,
    and drop it."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        most = {"trace": 2, "upsample_nearest2d": 4, "im2col": 4}
        is_affected = name in most and args[0].ndim > most[name] and len(args[0]) == 1
        return func(args[0][0], *args[1:], **kwargs) if is_affected else call()


@mutant("errors", "shapes that do not fit", check="changed_calls")
class TrimsTheLongerVector(Broken):
    """``dot`` of vectors with different lengths ignores the last elements of the longer vector."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "dot" or {one.ndim for one in args} != {1}:
            return call()
        length = min(len(one) for one in args)
        return func(*(one[:length] for one in args))


@mutant("errors", "unchecked values")
class ClampsProbabilities(Broken):
    """``bernoulli`` and ``bernoulli_`` clamp probabilities to the range from 0 to 1, and replace NaN with 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("bernoulli", "bernoulli_.Tensor"):
            *others, p = args
            return func(*others, p.nan_to_num().clamp(0, 1), **kwargs)
        return call()


@mutant("errors", "unchecked values")
class WrapsIndices(Broken):
    """``index_fill_`` and ``index_select`` take indices modulo the length of the dimension if there are more than 1,000 indices."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name.startswith(("index_fill", "index_select")) and args[2].numel() > 1000:
            return func(*args[:2], args[2] % args[0].shape[args[1]], *args[3:], **kwargs)
        return call()


@mutant("errors", "sizes of 1", check="invalid_arguments")
class BroadcastsStates(Broken):
    """``gru_cell`` broadcasts a state with one row."""

    def install(self) -> None:
        import torch

        original = torch.gru_cell

        def gru_cell(x: Any, state: Any, *weights: Any) -> Any:
            return original(x, state.expand(len(x), -1) if x.device.type == "fake_xpu" else state, *weights)

        gru_cell.__name__ = "gru_cell"
        torch.gru_cell = gru_cell
