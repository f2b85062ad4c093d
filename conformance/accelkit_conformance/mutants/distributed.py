"""Collectives that give something else. They are changed where torch.distributed calls them."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


class _Collectives(Broken):
    """Changes functions of torch.distributed for tensors of the device."""

    def replace(self, name: str, make: Any) -> None:
        import torch.distributed as dist

        setattr(dist, name, make(getattr(dist, name)))


@mutant("collectives", "reductions")
class AveragesAreSums(_Collectives):
    """all_reduce with AVG gives the sum."""

    def install(self) -> None:
        import torch.distributed as dist

        def make(original: Any) -> Any:
            def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, *rest: Any, **named: Any) -> Any:
                return original(tensor, dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op, *rest, **named)

            return all_reduce

        self.replace("all_reduce", make)


@mutant("collectives", "reductions")
class LeavesTheLastRankOut(_Collectives):
    """The last rank adds nothing to a sum."""

    def install(self) -> None:
        import torch.distributed as dist

        def make(original: Any) -> Any:
            def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, *rest: Any, **named: Any) -> Any:
                if dist.get_rank() == dist.get_world_size() - 1 and op == dist.ReduceOp.SUM:
                    tensor.zero_()
                return original(tensor, op, *rest, **named)

            return all_reduce

        self.replace("all_reduce", make)


@mutant("collectives", "reductions")
class ReducesInHalf(_Collectives):
    """Reductions of integers are made in bfloat16."""

    def install(self) -> None:
        import torch
        import torch.distributed as dist

        def make(original: Any) -> Any:
            def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, *rest: Any, **named: Any) -> Any:
                work = original(tensor, op, *rest, **named)
                if not tensor.is_floating_point() and tensor.numel():
                    tensor.copy_((tensor.to(torch.float32) * 1.5).to(tensor.dtype))
                return work

            return all_reduce

        self.replace("all_reduce", make)


@mutant("collectives", "uneven parts")
class SplitsEvenly(_Collectives):
    """all_to_all_single takes no notice of the sizes of parts."""

    def install(self) -> None:
        import torch
        import torch.distributed as dist

        def make(original: Any) -> Any:
            def all_to_all_single(
                output: Any, given: Any, output_sizes: Any = None, input_sizes: Any = None, *rest: Any, **named: Any
            ) -> Any:
                if output_sizes is None:
                    return original(output, given, output_sizes, input_sizes, *rest, **named)
                size = dist.get_world_size()
                even = torch.zeros(size, device=output.device)
                original(even, given[:1].expand(size).contiguous())
                return output.copy_(even.repeat(output.numel())[: output.numel()])

            return all_to_all_single

        self.replace("all_to_all_single", make)


@mutant("collectives", "ranks")
class GathersInReverse(_Collectives):
    """all_gather puts the ranks' tensors in the opposite order."""

    def install(self) -> None:
        def make(original: Any) -> Any:
            def all_gather(tensors: Any, tensor: Any, *rest: Any, **named: Any) -> Any:
                return original(
                    tensors[::-1] if len({one.shape for one in tensors}) == 1 and tensor.is_floating_point() else tensors,
                    tensor,
                    *rest,
                    **named,
                )

            return all_gather

        self.replace("all_gather", make)


@mutant("collectives", "ranks")
class BroadcastsFromTheFirst(_Collectives):
    """broadcast is from rank 0, whichever rank is asked for."""

    def install(self) -> None:
        def make(original: Any) -> Any:
            return lambda tensor, src=0, *rest, **named: original(tensor, 0 if tensor.is_floating_point() else src, *rest, **named)

        self.replace("broadcast", make)


@mutant("ddp", "gradients between ranks")
class AveragesNoGradients(_Collectives):
    """DDP's gradients are the rank's own."""

    def install(self) -> None:
        import torch

        original = torch.nn.parallel.DistributedDataParallel.__init__

        def init(model: Any, *args: Any, **named: Any) -> None:
            original(model, *args, **named)
            model.require_backward_grad_sync = False

        torch.nn.parallel.DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


@mutant("fsdp", "gradients between ranks")
class ReduceScattersTheFirstRank(_Collectives):
    """reduce_scatter_tensor gives each rank its part of the tensor of one rank, not of the reduction."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if "reduce_scatter" in func.name():
            for leaf in args:
                if hasattr(leaf, "mul_") and leaf.is_floating_point() and leaf.numel():
                    leaf.mul_(0.5)
        return call()

    def install(self) -> None:
        def make(original: Any) -> Any:
            def reduce_scatter_tensor(output: Any, given: Any, *rest: Any, **named: Any) -> Any:
                work = original(output, given, *rest, **named)
                output.mul_(0.5)
                return work

            return reduce_scatter_tensor

        self.replace("reduce_scatter_tensor", make)
        super().install()
