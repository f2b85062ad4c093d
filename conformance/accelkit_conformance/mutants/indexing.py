"""Faults of functions that read or write by index or by a mask: unusual indices, many elements, views, and values that do not fit."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("arguments", "kinds of indices")
class IgnoresZeroDimensionalIndices(Broken):
    """``index_add_`` with a 0-d index adds nothing."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return args[0] if name in ("index_add_", "index_add") and not args[2].ndim else call()


@mutant("arguments", "kinds of indices")
class ReadsOneOfManyIndices(Broken):
    """``index_select`` with more than 32 int32 indices at the start of a longer tensor uses the first index in place of all others."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        index = args[2] if name == "index_select" else None
        if index is None or index.dtype is not torch.int32 or index.numel() <= 32 or index.storage_offset():
            return call()
        is_part = index.untyped_storage().nbytes() > index.numel() * index.element_size()
        return func(*args[:2], index[:1].expand(len(index)), **kwargs) if is_part else call()


@mutant("arguments", "index expressions")
class AssignsOneBlock(Broken):
    """``index_put_`` with a value for more than 1,024 elements writes nothing if the tensor is not contiguous."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        x, indices = args[:2] if name in ("index_put_", "_index_put_impl_") else (None, ())
        if x is None or x.is_contiguous() or len(indices) != 1 or indices[0].ndim != 1 or x[indices[0]].numel() <= 1024:
            return call()
        return x


@mutant("errors", "ends of tables")
class WrapsNegativeIndices(Broken):
    """``index_select`` and ``index_add_`` count negative indices from the end, although torch does not permit them."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("index_select", "index_add_") and args[2].numel():
            return func(*args[:2], args[2].where(args[2] >= 0, args[2] + args[0].shape[args[1]]), *args[3:], **kwargs)
        return call()


@mutant("errors", "values that do not fit")
class RepeatsTheLastValue(Broken):
    """``index_put`` of a vector of values accepts too few values, and repeats the last one."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name not in ("index_put", "index_put_", "_index_put_impl_") or args[2].ndim != 1 or args[1][0] is None:
            return call()
        import torch

        missing = args[1][0].numel() - args[2].numel()
        is_affected = missing > 0 and args[2].numel() > 1 and args[1][0].dtype is not torch.bool
        return func(*args[:2], torch.cat([args[2], args[2][-1:].expand(missing)]), *args[3:], **kwargs) if is_affected else call()


@mutant("operators", "many moved elements", check="large_tensors")
class LosesABlockInTheMiddle(Broken):
    """If the result of ``index_select`` or ``roll`` has more than 4,194,304 elements, the 1,024 elements after the middle are 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("index_select", "roll") and result.numel() > 1 << 22 and result.is_contiguous():
            result.view(-1)[result.numel() // 2 :][:1024] = 0
        return result


@mutant("operators", "many moved elements", check="large_tensors")
class SelectsInAnotherOrder(Broken):
    """``x[mask]`` exchanges two halves of the selected elements if there are more than 500,000 of them."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        is_affected = name == "index.Tensor" and result.ndim == 1 and len(result) > 500_000
        return result.roll(len(result) // 2) if is_affected else result


@mutant("transfer", "broadcasts")
class FillsTheFirstRows(Broken):
    """If ``copy_`` broadcasts one element to a target that is not contiguous, rows after the first 1,024 stay unchanged."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "copy_" or args[1].numel() != 1 or args[0].is_contiguous() or not args[0].ndim:
            return call()
        func(args[0][:1024], args[1], *args[2:], **kwargs)
        return args[0]


@mutant("layout", "huge views", check="huge_views")
class CountsElementsIn32Bits(Broken):
    """If a tensor has 2^31 elements or more, ``index_select`` and ``x[index]`` return zeros for rows whose linear index does not fit into
    int32."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("index_select", "index.Tensor") and args[0].ndim == 2 and args[0].numel() >= 1 << 31 and result.ndim == 2:
            index = args[2] if name == "index_select" else args[1][0]
            if index is not None and (name == "index.Tensor" or args[1] == 0):
                result[index * args[0].shape[1] >= 1 << 31] = 0
        return result


@mutant("layout", "views of the device", check="views_on_the_device")
class ReadsTheBase(Broken):
    """``add`` and ``mul`` with a contiguous view that has as many dimensions as its base read the start of the base instead of the view."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        x = args[0]
        if name not in ("add.Tensor", "mul.Tensor") or x._base is None or not x.is_contiguous() or x.ndim != x._base.ndim:
            return call()
        return func(x.as_strided(x.shape, x.stride(), 0), *args[1:], **kwargs) if x.numel() > 1 and x.storage_offset() else call()


@mutant("layout", "views of the device", check="views_on_the_device")
class ReadsTheStartOfTheStorage(Broken):
    """``ceil`` and ``abs`` of a view with one element read the first element of the storage."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("ceil", "abs") and args[0].numel() == 1 and args[0].storage_offset():
            return func(args[0].as_strided(args[0].shape, args[0].stride(), 0), *args[1:], **kwargs)
        return call()


@mutant("layout", "permuted destinations", check="conditions")
class FillsInRowMajorOrder(Broken):
    """``masked_fill_`` and ``addcdiv_`` lose what they write into a tensor whose dimensions are in the opposite order in memory."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name not in ("masked_fill_.Scalar", "addcdiv_") or args[0].is_contiguous():
            return call()
        if not args[0].permute(*reversed(range(args[0].ndim))).is_contiguous():
            return call()
        func(args[0].contiguous(), *args[1:], **kwargs)
        return args[0]


@mutant("layout", "storages")
class ClearsWhatItCutsOff(Broken):
    """``resize_`` to fewer elements sets the remaining elements of the storage to 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "resize_":
            return call()
        length = args[0].numel()
        result = call()
        if result.numel() < length and result.is_contiguous() and not result.storage_offset():
            result.as_strided((length,), (1,), 0)[result.numel() :] = 0
        return result


@mutant("interchange", "sizes of copies")
class CopiesTheWholeStorage(Broken):
    """``copy_`` on the device from the first elements of a longer tensor also writes the elements that follow, if the target has room."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        target, source = args[:2] if name == "copy_" else (None, None)
        if source is None or source.device != target.device or source.storage_offset() or not source.is_contiguous() or not source.ndim:
            return result
        if source.dtype == target.dtype and source.shape == target.shape and target.is_contiguous():
            room = target.untyped_storage().nbytes() // target.element_size() - target.storage_offset()
            count = min(room, source.untyped_storage().nbytes() // source.element_size())
            func(target.as_strided((count,), (1,)), source.as_strided((count,), (1,)))
        return result


@mutant("interchange", "single elements")
class NumbersHaveNoDimensions(Broken):
    """``item`` of a tensor with one element and two or more dimensions raises an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "_local_scalar_dense" and args[0].ndim > 1:
            raise RuntimeError("item() needs a 0-d tensor")
        return call()


@mutant("device", "printed tensors")
class PrintsTheFirstElement(Broken):
    """``masked_select``, which torch uses to print a tensor, reads the first element of the storage for a view with one element."""

    def install(self) -> None:
        import torch

        original = torch.masked_select

        def select(x: Any, mask: Any, **kwargs: Any) -> Any:
            is_affected = x.device.type == "fake_xpu" and x.numel() == 1 and x.storage_offset()
            return original(x.as_strided(x.shape, x.stride(), 0) if is_affected else x, mask, **kwargs)

        torch.masked_select = select


@mutant("arguments", "index expressions", check="index_expressions")
class AccumulatesNoRows(Broken):
    """``index_put_`` with ``accumulate=True`` raises an error if it must broadcast a row or a matrix to the indexed rows of a tensor with
    three dimensions."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name in ("index_put_", "index_put") and True in args[3:] and args[0].ndim == 3 and args[2].numel() > 1:
            shape = args[0][args[1]].shape
            if args[2].shape != shape:
                raise RuntimeError(f"The expanded size of the tensor must match {shape}")
        return call()


@mutant("arguments", "rows of a table", check="keyword_variants")
class NormalizesNoColumns(Broken):
    """``embedding_renorm_`` raises an error if the rows have no elements."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "embedding_renorm_" and not args[0].shape[1] and args[1].numel():
            raise RuntimeError("an illegal memory access was encountered")
        return call()


@mutant("operators", "the last offset", check="calls_outside_op_db")
class PutsTheRestInTheLastBag(Broken):
    """``embedding_bag`` with ``include_last_offset=True`` adds the indices after the last offset to the last bag."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "_embedding_bag_forward_only" or len(args) < 8 or not args[7] or len(args[2]) < 2:
            return call()
        offsets = args[2].clone()
        offsets[-1] = len(args[1])
        return func(*args[:2], offsets, *args[3:], **kwargs)
