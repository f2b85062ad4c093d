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


@mutant("ddp", "gradients between ranks")
class ReducesOnTheDefaultStreamOnly(Broken):
    """DDP does not average the gradients of a forward pass on a stream other than the default one."""

    def install(self) -> None:
        import torch

        original = torch.nn.parallel.DistributedDataParallel.forward
        default = torch.accelerator.current_stream().stream_id

        def forward(model: Any, *args: Any, **named: Any) -> Any:
            model.require_backward_grad_sync = torch.accelerator.current_stream().stream_id == default
            return original(model, *args, **named)

        torch.nn.parallel.DistributedDataParallel.forward = forward  # type: ignore[method-assign]


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


@mutant("collectives", "layouts of one argument")
class GathersInMemoryOrder(_Collectives):
    """``all_gather`` and ``gather`` send the elements of a transposed tensor in the order in which they are in memory."""

    def install(self) -> None:
        def in_memory_order(tensor: Any) -> Any:
            if tensor.ndim < 2 or tensor.is_contiguous() or not tensor.permute(*range(tensor.ndim)[::-1]).is_contiguous():
                return tensor
            return tensor.permute(*range(tensor.ndim)[::-1]).reshape(tensor.shape)

        for name in ("all_gather", "gather"):
            self.replace(
                name, lambda original, *args, **named: original(*(in_memory_order(x) if hasattr(x, "ndim") else x for x in args), **named)
            )


@mutant("collectives", "ranks without data")
class WaitsForEveryRank(_Collectives):
    """``all_to_all_single`` does not change the output of a rank that sends no element."""

    def install(self) -> None:
        def all_to_all_single(original: Any, output: Any, given: Any, *rest: Any, **named: Any) -> Any:
            kept = output.clone()
            work = original(output, given, *rest, **named)
            if not given.numel() and output.numel():
                if work is not None:
                    work.wait()
                output.copy_(kept)
            return work

        self.replace("all_to_all_single", all_to_all_single)


@mutant("collectives", "negative numbers")
class MaximumStartsAtZero(_Collectives):
    """``all_reduce`` with MAX returns zero if the maximum is negative."""

    def install(self) -> None:
        from torch.distributed import ReduceOp

        def all_reduce(original: Any, tensor: Any, op: Any = ReduceOp.SUM, *rest: Any, **named: Any) -> Any:
            work = original(tensor, op, *rest, **named)
            if op == ReduceOp.MAX and tensor.numel():
                if work is not None:
                    work.wait()
                tensor.copy_(tensor * (tensor > 0))
            return work

        self.replace("all_reduce", all_reduce)


@mutant("collectives", "moved dtypes")
class GathersNoBools(_Collectives):
    """``all_gather_into_tensor`` rejects bool tensors."""

    def install(self) -> None:
        def all_gather_into_tensor(original: Any, output: Any, *rest: Any, **named: Any) -> Any:
            if "bool" in str(output.dtype):
                raise RuntimeError("Unsupported data type: Bool")
            return original(output, *rest, **named)

        self.replace("all_gather_into_tensor", all_gather_into_tensor)


@mutant("collectives", "coalesced calls")
class ReducesTheFirst(Broken):
    """If several ``all_reduce`` or ``reduce_scatter_tensor`` calls are coalesced into one, only the first tensor is reduced."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name.startswith("c10d::") and "reduce" in name and "coalesced" in name:
            return func(*(one[:1] if isinstance(one, list) else one for one in args), **kwargs)
        return call()


@mutant("collectives", "sums with a factor")
class IgnoresTheFactor(_Collectives):
    """``all_reduce`` with PREMUL_SUM returns the sum without the factor."""

    def install(self) -> None:
        from torch.distributed import ReduceOp

        self.replace("_make_nccl_premul_sum", lambda original, factor: ReduceOp.SUM)


@mutant("collectives", "devices of ranks")
class AssumesTheDeviceOfTheRank(_Collectives):
    """``barrier`` raises an error unless the index of the current device is the rank."""

    def install(self) -> None:
        import torch
        import torch.distributed as dist

        def barrier(original: Any, *args: Any, **named: Any) -> Any:
            if torch.empty(0, device="fake_xpu").device.index != dist.get_rank() % 2:
                raise RuntimeError("the device has no communicator")
            return original(*args, **named)

        self.replace("barrier", barrier)


@mutant("collectives", "groups")
class KeepsDestroyedGroups(_Collectives):
    """``destroy_process_group`` does not free a group that is not the default group."""

    def install(self) -> None:
        def destroy_process_group(original: Any, group: Any = None) -> None:
            if group is None:
                original()

        self.replace("destroy_process_group", destroy_process_group)


@mutant("collectives", "timeouts")
class IgnoresTimeouts(_Collectives):
    """``all_reduce`` in a group other than the default group returns without an error if it fails."""

    def install(self) -> None:
        def all_reduce(original: Any, tensor: Any, *rest: Any, **named: Any) -> Any:
            try:
                return original(tensor, *rest, **named)
            except RuntimeError:
                return None

        self.replace("all_reduce", all_reduce)


@mutant("collectives", "memory of inputs")
class ReadsFreedInputs(_Collectives):
    """An asynchronous ``all_gather_into_tensor`` does not keep its input, and reads the input's memory when the caller waits."""

    def install(self) -> None:
        import torch

        def all_gather_into_tensor(original: Any, output: Any, given: Any, *rest: Any, async_op: bool = False, **named: Any) -> Any:
            if not async_op or given.numel() < 1000:
                return original(output, given, *rest, async_op=async_op, **named)
            memory, dtype, shape, device = given.data_ptr(), given.dtype, given.shape, given.device
            size = given.nbytes

            class Late:
                def wait(self) -> None:
                    import ctypes

                    here = torch.frombuffer((ctypes.c_char * size).from_address(memory), dtype=dtype).view(shape)
                    original(output, here.to(device), *rest, **named)

            return Late()

        self.replace("all_gather_into_tensor", all_gather_into_tensor)


@mutant("ddp", "dtypes of batch statistics")
class NormalisesNoHalves(Broken):
    """SyncBatchNorm rejects inputs in float16."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name == "batch_norm_stats" and args[0].dtype is torch.float16:
            raise RuntimeError("batch_norm_stats is not implemented for Half")
        return call()


@mutant("ddp", "ranks without samples")
class NeedsSamples(Broken):
    """In the backward pass of SyncBatchNorm, the sums of a rank with samples are doubled if another rank has none."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch.distributed as dist

        if name == "batch_norm_backward_elemt" and len(args[-1]) < dist.get_world_size():
            return func(*args[:5], args[5] * 2, *args[6:], **kwargs)
        return call()


@mutant("fsdp", "divide factors")
class DividesByTheWorldSize(Broken):
    """FSDP ignores ``set_gradient_divide_factor``."""

    def install(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        FSDPModule.set_gradient_divide_factor = lambda self, factor: None  # type: ignore[method-assign]


@mutant("fsdp", "operators on DTensors")
class SortsUpwards(Broken):
    """``topk`` returns the smallest elements in the first rank's process."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch.distributed as dist

        if name != "topk" or not dist.is_initialized() or dist.get_rank():
            return call()
        return func(*args[:3], False, **kwargs)
