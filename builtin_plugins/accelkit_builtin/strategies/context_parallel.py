"""Context parallelism: dividing the sequences of a batch among the processes of the dimension ``context``, and gathering them again.

``context_parallel_attention`` gathers keys and values in the same way.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from accelkit import UsageError, tree_map

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclasses.dataclass(frozen=True, slots=True)
class ContextGroup:
    """The processes among which each sequence is divided.

    Attributes:
        group: The process group.
        index: The index of this process's part of each sequence.
        size: The number of parts.
    """

    group: dist.ProcessGroup
    index: int
    size: int

    @classmethod
    def of_mesh(cls, mesh: DeviceMesh | None) -> ContextGroup | None:
        """Return the group of the dimension ``context``, or None if the mesh does not divide sequences."""
        if mesh is None or "context" not in (mesh.mesh_dim_names or ()) or mesh["context"].size() == 1:
            return None
        return cls(mesh.get_group("context"), mesh.get_local_rank("context"), mesh["context"].size())

    def gather(self, part: torch.Tensor, dim: int) -> torch.Tensor:
        """Concatenate the parts of all processes along ``dim``. The backward pass sums the gradients of each part over all processes."""
        gathered: torch.Tensor = _Gather.apply(part, dim % part.dim(), self)  # type: ignore[no-untyped-call]
        return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, dim: int, context: ContextGroup) -> torch.Tensor:
        ctx.dim, ctx.context = dim, context
        sent = part.contiguous().view(torch.uint8) if part.dtype is torch.bool else part.contiguous()
        gathered = sent.new_empty(context.size, *sent.shape)
        _all_gather(gathered.view(-1), sent.view(-1), group=context.group)
        whole = torch.cat(gathered.unbind(), dim)
        return whole.view(torch.bool) if part.dtype is torch.bool else whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        context: ContextGroup = ctx.context
        parts = torch.stack(gradient.chunk(context.size, ctx.dim))
        total = torch.empty_like(parts[0])
        _reduce_scatter(total.view(-1), parts.view(-1), group=context.group)
        return total, None, None


def shard_sequence(tree: T, mesh: DeviceMesh | None, dim: int) -> T:
    """Return this process's part of every tensor in a nested batch.

    Each part is a view of consecutive elements along ``dim``. The parts have equal sizes and are in the order of the processes. All
    processes of the dimension ``context`` must have the same whole batch. Batches of a prepared loader satisfy this condition.

    Args:
        tree: The batch: tensors in lists, tuples, dicts or dataclasses. Other objects are returned unchanged.
        mesh: ``rt.mesh``. If it is None, or has no dimension ``context``, or has only one process in this dimension, ``tree`` is returned
            unchanged.
        dim: The dimension of the tensors that contains the sequence.

    Raises:
        UsageError: If a tensor has no dimension ``dim``, or the length of this dimension is not a multiple of the number of parts.
    """
    context = ContextGroup.of_mesh(mesh)
    if context is None:
        return tree
    size, index = context.size, context.index

    def part(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        length = _length(leaf, dim)
        if length % size:
            raise UsageError(
                f"a sequence of length {length} cannot be divided among {size} processes",
                why=f"dimension {dim} of a tensor of shape {tuple(leaf.shape)} is not a multiple of the mesh's dimension context",
                hint=f"pad the sequences to {length + -length % size}, for example, and ignore the padding in the loss",
            )
        return leaf.narrow(dim, index * (length // size), length // size)

    return tree_map(part, tree)


def gather_sequence(tree: T, mesh: DeviceMesh | None, dim: int) -> T:
    """Concatenate the parts of all processes, for every tensor in a nested structure.

    This is the inverse of ``shard_sequence``. All processes of the dimension ``context`` must call this function, with tensors of the same
    shapes. In the backward pass, the gradient of each part goes to the process that has the part. If the loss is computed from gathered
    tensors, every process of the dimension ``context`` computes the loss of the whole sequence, and the parameters get the gradients of
    this loss.

    Args:
        tree: Tensors in lists, tuples, dicts or dataclasses. Other objects are returned unchanged.
        mesh: ``rt.mesh``. If it is None, or has no dimension ``context``, or has only one process in this dimension, ``tree`` is returned
            unchanged.
        dim: The dimension of the tensors that contains the sequence.

    Raises:
        UsageError: If a tensor has no dimension ``dim``.
    """
    context = ContextGroup.of_mesh(mesh)
    if context is None:
        return tree

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        _length(leaf, dim)
        return context.gather(leaf, dim)

    return tree_map(whole, tree)


def _length(tensor: torch.Tensor, dim: int) -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise UsageError(
            f"a tensor of shape {tuple(tensor.shape)} has no dimension {dim}, so it cannot be divided along that dimension",
            why="every tensor that is passed to shard_sequence or gather_sequence is divided along the same dimension",
            hint="pass only the tensors that have a sequence in this dimension",
        )
    return tensor.shape[dim]
