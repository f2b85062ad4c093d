"""Faults in collectives, ``send``, ``isend``, gradient averaging in DDP and FSDP, and buffer synchronisation in DDP."""

from __future__ import annotations

import functools
from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


class _Collectives(Broken):
    """The base class of mutants that replace functions of torch.distributed."""

    def replace(self, name: str, faulty: Any) -> None:
        """Replace a function of torch.distributed with ``faulty``.

        The first argument of ``faulty`` is the original function. The other arguments are those of the call.
        """
        import torch.distributed as dist

        setattr(dist, name, functools.partial(faulty, getattr(dist, name)))


@mutant("collectives", "reductions")
class AveragesAreSums(_Collectives):
    """``all_reduce`` with AVG returns the sum."""

    def install(self) -> None:
        from torch.distributed import ReduceOp

        def all_reduce(original: Any, tensor: Any, op: Any = ReduceOp.SUM, *rest: Any, **named: Any) -> Any:
            return original(tensor, ReduceOp.SUM if op == ReduceOp.AVG else op, *rest, **named)

        self.replace("all_reduce", all_reduce)


@mutant("collectives", "reductions")
class LeavesTheLastRankOut(_Collectives):
    """``all_reduce`` with SUM leaves out the last rank."""

    def install(self) -> None:
        import torch.distributed as dist

        def all_reduce(original: Any, tensor: Any, op: Any = dist.ReduceOp.SUM, *rest: Any, **named: Any) -> Any:
            if dist.get_rank() == dist.get_world_size() - 1 and op == dist.ReduceOp.SUM:
                tensor.zero_()
            return original(tensor, op, *rest, **named)

        self.replace("all_reduce", all_reduce)


@mutant("collectives", "reductions")
class InflatesIntegers(_Collectives):
    """``all_reduce`` of integers returns 1.5 times the correct result."""

    def install(self) -> None:
        def all_reduce(original: Any, tensor: Any, *rest: Any, **named: Any) -> Any:
            work = original(tensor, *rest, **named)
            if work is not None:
                work.wait()
            if not tensor.is_floating_point() and tensor.numel():
                tensor.copy_((tensor.float() * 1.5).to(tensor.dtype))
            return work

        self.replace("all_reduce", all_reduce)


@mutant("collectives", "uneven parts")
class SplitsEvenly(_Collectives):
    """In ``all_to_all_single`` with split sizes, each rank sends the first element of its input to every rank, and nothing else.

    Each rank repeats the elements that it receives until its output is full.
    """

    def install(self) -> None:
        import torch.distributed as dist

        def all_to_all_single(original: Any, output: Any, given: Any, sizes: Any = None, *rest: Any, **named: Any) -> Any:
            work = original(output, given, sizes, *rest, **named)
            if sizes is not None or named.get("output_split_sizes") is not None:
                if work is not None:
                    work.wait()
                group = named.get("group", rest[1] if len(rest) > 1 else None)
                even = given.new_zeros(dist.get_world_size(group))
                first = given.reshape(-1)[:1] if given.numel() else given.new_zeros(1)
                original(even, first.expand_as(even).contiguous(), group=group)
                output.copy_(even.repeat(output.numel())[: output.numel()].view_as(output))
            return work

        self.replace("all_to_all_single", all_to_all_single)


@mutant("collectives", "ranks")
class GathersInReverse(_Collectives):
    """``all_gather`` of floating-point tensors that all have the same shape returns them in reverse rank order."""

    def install(self) -> None:
        def all_gather(original: Any, tensors: Any, tensor: Any, *rest: Any, **named: Any) -> Any:
            is_reversed = len({one.shape for one in tensors}) == 1 and tensor.is_floating_point()
            return original(tensors[::-1] if is_reversed else tensors, tensor, *rest, **named)

        self.replace("all_gather", all_gather)


@mutant("collectives", "ranks")
class BroadcastsFromTheFirst(_Collectives):
    """``broadcast`` of floating-point tensors ignores ``src`` and always sends from rank 0."""

    def install(self) -> None:
        def broadcast(original: Any, tensor: Any, src: int = 0, *rest: Any, **named: Any) -> Any:
            return original(tensor, 0 if tensor.is_floating_point() else src, *rest, **named)

        self.replace("broadcast", broadcast)


@mutant("collectives", "kinds of tensors")
class ReducesOneBlock(_Collectives):
    """``all_reduce`` leaves the elements after the first 65,536 unchanged."""

    def install(self) -> None:
        def all_reduce(original: Any, tensor: Any, *rest: Any, **named: Any) -> Any:
            left = tensor.reshape(-1)[65_536:].clone()
            work = original(tensor, *rest, **named)
            if len(left):
                if work is not None:
                    work.wait()
                tensor.view(-1)[65_536:].copy_(left)
            return work

        self.replace("all_reduce", all_reduce)


@mutant("collectives", "kinds of tensors")
class ExclusiveOrIsOr(_Collectives):
    """``reduce`` with BXOR returns the result of BOR."""

    def install(self) -> None:
        from torch.distributed import ReduceOp

        def reduce(original: Any, tensor: Any, dst: Any = None, op: Any = ReduceOp.SUM, *rest: Any, **named: Any) -> Any:
            return original(tensor, dst, ReduceOp.BOR if op == ReduceOp.BXOR else op, *rest, **named)

        self.replace("reduce", reduce)


@mutant("collectives", "kinds of tensors")
class ReceivesAtTheStart(_Collectives):
    """``all_gather_into_tensor`` ignores the storage offset of its output and writes to the start of the storage."""

    def install(self) -> None:
        def all_gather_into_tensor(original: Any, output: Any, *rest: Any, **named: Any) -> Any:
            start = output.as_strided(output.shape, output.stride(), 0)
            return original(start, *rest, **named)

        self.replace("all_gather_into_tensor", all_gather_into_tensor)


@mutant("collectives", "groups")
class ScattersFromTheFirst(_Collectives):
    """``scatter`` with a ``group`` of several ranks ignores ``src`` and always sends from the first rank of the group."""

    def install(self) -> None:
        import torch.distributed as dist

        def scatter(original: Any, tensor: Any, parts: Any = None, src: Any = None, group: Any = None, **named: Any) -> Any:
            members = dist.get_process_group_ranks(group or dist.group.WORLD)
            if group is None or len(members) < 2 or src == members[0]:
                return original(tensor, parts, src=src, group=group, **named)
            mine = [tensor.clone() for _ in members] if dist.get_rank() == members[0] else None
            return original(tensor, mine, src=members[0], group=group, **named)

        self.replace("scatter", scatter)


@mutant("ddp", "gradients between ranks")
class AveragesNoGradients(_Collectives):
    """DDP does not average gradients over the ranks."""

    def install(self) -> None:
        import torch

        original = torch.nn.parallel.DistributedDataParallel.__init__

        def init(model: Any, *args: Any, **named: Any) -> None:
            original(model, *args, **named)
            model.require_backward_grad_sync = False

        torch.nn.parallel.DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


@mutant("fsdp", "gradients between ranks")
class ReduceScattersHalf(Broken):
    """The values that a reduce-scatter returns are half as large as the correct values."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if "reduce_scatter" in func.name():
            for leaf in args:
                if hasattr(leaf, "mul_") and leaf.is_floating_point() and leaf.numel():
                    leaf.mul_(0.5)
        return call()


@mutant("ddp", "buffers between ranks")
class SynchronisesNoBuffers(Broken):
    """DDP gives rank 0's parameters to the other ranks, but leaves each rank with its own buffers."""

    def install(self) -> None:
        import torch

        original = torch.nn.parallel.DistributedDataParallel.__init__

        def init(model: Any, *args: Any, **named: Any) -> None:
            original(model, *args, **{**named, "broadcast_buffers": False})

        torch.nn.parallel.DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


@mutant("collectives", "uneven parts")
class SendsNoEmptyParts(_Collectives):
    """``all_to_all`` does not change the last output tensor of a rank if any output tensor of this rank is empty."""

    def install(self) -> None:
        def all_to_all(original: Any, outputs: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            kept = outputs[-1].clone()
            work = original(outputs, inputs, *rest, **named)
            if any(not one.numel() for one in outputs):
                if work is not None:
                    work.wait()
                outputs[-1].copy_(kept)
            return work

        self.replace("all_to_all", all_to_all)


@mutant("collectives", "strided tensors")
class BroadcastsACopy(_Collectives):
    """An asynchronous ``broadcast`` to a strided tensor writes the values to a contiguous copy and does not change the tensor itself."""

    def install(self) -> None:
        def broadcast(original: Any, tensor: Any, *rest: Any, async_op: bool = False, **named: Any) -> Any:
            return original(tensor.contiguous() if async_op else tensor, *rest, async_op=async_op, **named)

        self.replace("broadcast", broadcast)


@mutant("ddp", "unused parameters")
class EachRankUsesItsOwn(Broken):
    """``all_reduce`` of int32 returns each rank's own values, so DDP does not learn which parameters the other ranks have used."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if not name.startswith("c10d::allreduce_") or args[0][0].dtype is not torch.int32:
            return call()
        kept = [one.clone() for one in args[0]]
        result = call()
        self.synchronize(args[0][0].device)
        torch.distributed.Work.unbox(result[1]).wait()  # type: ignore[attr-defined]
        for one, before in zip(args[0], kept, strict=True):
            one.copy_(before)
        return result


@mutant("collectives", "sent tensors")
class SendsTheStart(Broken):
    """``send`` and ``isend`` ignore the storage offset of a tensor and send the values at the start of its storage."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name.startswith("c10d::send"):
            return func([one.as_strided(one.shape, one.stride(), 0) for one in args[0]], *args[1:], **kwargs)
        return call()


@mutant("collectives", "narrower types")
class ReducesInInt32(Broken):
    """``all_reduce`` of int64 sends only the lowest 32 bits of each element."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        for one in args[0] if name.startswith("c10d::allreduce_") else ():
            if one.dtype is torch.int64:
                one.copy_(one.to(torch.int32))
        return call()


@mutant("collectives", "narrower types")
class BroadcastsInFloat32(_Collectives):
    """``broadcast`` of float64 sends the elements in float32."""

    def install(self) -> None:
        def broadcast(original: Any, tensor: Any, *rest: Any, **named: Any) -> Any:
            if tensor.is_floating_point():
                tensor.copy_(tensor.float())
            return original(tensor, *rest, **named)

        self.replace("broadcast", broadcast)
