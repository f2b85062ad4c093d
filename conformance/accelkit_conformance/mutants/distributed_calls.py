"""Collectives and sharded models that give wrong results in less common cases."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken
from accelkit_conformance.mutants.distributed import _Collectives


@mutant("collectives", "bits")
class BroadcastsASum(_Collectives):
    """``broadcast`` is computed as a sum to which the receiving ranks contribute zeros, so negative zero becomes positive zero."""

    def install(self) -> None:
        def broadcast(original: Any, tensor: Any, *rest: Any, **named: Any) -> Any:
            work = original(tensor, *rest, **named)
            if tensor.is_floating_point() and not named.get("async_op"):
                tensor.add_(0.0)
            return work

        self.replace("broadcast", broadcast)


@mutant("collectives", "in place")
class ClearsTheOutput(_Collectives):
    """``all_gather_into_tensor`` sets its output to zero before it reads its input."""

    def install(self) -> None:
        def all_gather_into_tensor(original: Any, output: Any, given: Any, *rest: Any, **named: Any) -> Any:
            output.zero_()
            return original(output, given, *rest, **named)

        self.replace("all_gather_into_tensor", all_gather_into_tensor)


@mutant("ddp", "buffers between ranks")
class ForwardKeepsBuffers(Broken):
    """In a forward pass, DDP does not broadcast rank 0's buffers to the other ranks."""

    def install(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        setattr(DistributedDataParallel, "_sync_buffers", lambda self: None)  # noqa: B010


@mutant("ddp", "batch statistics")
class WeighsRanksEqually(Broken):
    """SyncBatchNorm gives all ranks the same weight in its statistics, even if their batches differ in size."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "batch_norm_gather_stats_with_counts":
            return func(*args[:-1], args[-1].mean().expand_as(args[-1]).contiguous(), **kwargs)
        return call()


@mutant("fsdp", "partial results")
class KeepsPartialResults(Broken):
    """The functional ``all_reduce`` does not add partial sums: each rank keeps its own partial sum.

    This affects, for example, the norm of sharded gradients.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return args[0].clone() if name.startswith("_c10d_functional::all_reduce") else call()


@mutant("ddp", "batch statistics")
class MistakesTheMemoryFormat(Broken):
    """SyncBatchNorm's input gradient is wrong if the output gradient is channels_last, but torch cannot tell this from its strides."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        gradient = args[0] if name == "batch_norm_backward_elemt" else None
        is_hidden = gradient is not None and gradient.ndim == 4 and not gradient.is_contiguous() and gradient.stride(3) == 1
        if is_hidden and gradient.is_contiguous(memory_format=torch.channels_last) and gradient.shape[3] == 1:
            return result.movedim(1, -1).contiguous().view(result.shape)
        return result
