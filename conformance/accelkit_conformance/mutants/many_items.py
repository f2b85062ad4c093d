"""Operators that compute wrong results when given many tensors, many matrices, many indices, or a number that float32 cannot represent."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.attention import change_attention
from accelkit_conformance.mutants.broken import Broken


@mutant("arguments", "many items")
class ConcatenatesTheFirst128(Broken):
    """``cat`` writes zeros in place of all tensors after the first 128."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "cat" and len(args[0]) > 128:
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            first = sum(one.shape[dim] for one in args[0][:128])
            result.narrow(dim, first, result.shape[dim] - first).zero_()
        return result


@mutant("arguments", "many items")
class InvertsTheFirstBlock(Broken):
    """``linalg.inv`` and ``linalg.det`` compute only the first 65,535 matrices of a batch, and return zeros for the others."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("linalg_inv_ex", "_linalg_det") and args[0].dim() == 3:
            result[0][65_535:].zero_()
        return result


@mutant("arguments", "many items")
class TrainsThePadding(Broken):
    """The backward pass of an embedding with more than 4,096 indices ignores ``padding_idx``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "embedding_dense_backward" and args[1].numel() > 4096:
            return func(*args[:3], -1, *args[4:], **kwargs)
        return call()


@mutant("arguments", "empty tensors in lists")
class CountsEmptyTensors(Broken):
    """Foreach operators process 110 tensors at a time, and forget to write the results of a group that begins with an empty tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.startswith("_foreach_norm"):
            for start in range(110, len(args[0]), 110):
                if not args[0][start].numel():
                    for one in result[start : start + 110]:
                        one.zero_()
        return result


@mutant("arguments", "many heads")
class AttendsToTheFirst65535(Broken):
    """Attention in half precision computes the first 65,535 heads of a batch only."""

    def install(self) -> None:
        import torch

        def change(original: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
            result = original(query, key, value, mask, **kwargs)
            if query.dtype is torch.float16 and query.dim() == 4 and query.shape[:2].numel() > 65_535:
                result.flatten(0, 1)[65_535:].zero_()
            return result

        change_attention(change)


@mutant("arguments", "many boundaries")
class SearchesTheFirst65536Boundaries(Broken):
    """``searchsorted`` and ``bucketize`` search only the first 65,536 boundaries."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.clamp_(max=65_536) if name in ("searchsorted.Tensor", "bucketize.Tensor") else result


@mutant("arguments", "numbers")
class NumbersInFloat32(Broken):
    """``mul`` and ``add`` of a float64 tensor round Python numbers, including ``alpha``, to float32."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name.partition(".")[0] not in ("mul", "add") or args[0].dtype is not torch.float64:
            return call()

        def rounded(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dim() == 0:
                return value.float().double()
            return torch.tensor(value, dtype=torch.float32).item() if isinstance(value, float) else value

        return func(args[0], *map(rounded, args[1:]), **{key: rounded(value) for key, value in kwargs.items()})


@mutant("operators", "many bins", check="near_limits")
class CountsInTheFirst4096Bins(Broken):
    """``histogram`` counts no elements in the bins after the first 4,096."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("histogram.bin_ct", "histogram.bins_tensor"):
            result[0][4096:].zero_()
        return result


@mutant("modules", "long targets")
class HalvesLossesOf256Labels(Broken):
    """The CTC loss of a target with 256 labels is half as large as it should be."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if not name.startswith("_ctc_loss") or "backward" in name:
            return call()
        losses, alpha = call()
        return losses * torch.where(torch.as_tensor(args[3]).to(losses.device) == 256, 0.5, 1.0), alpha
