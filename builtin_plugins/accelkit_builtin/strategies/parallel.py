"""``parallel``: hybrid sharding (HSDP), context parallelism and tensor parallelism, combined on one device mesh."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from accelkit import Precision, UnsupportedError, UsageError, hookimpl, make_mesh
from accelkit_builtin.precisions.fp8 import Float8
from accelkit_builtin.precisions.quantized import QuantizedPrecision
from accelkit_builtin.precisions.transformer_engine import TransformerEngine
from accelkit_builtin.strategies.fsdp import FSDPOptions, FSDPStrategy, local_part, scale_to_norm
from accelkit_builtin.strategies.options import checked_options
from accelkit_builtin.strategies.tensor_parallel import check_plan, parallelize, plan_of

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

    from accelkit_builtin.strategies.context_parallel import ContextGroup

_UNSUPPORTED = {
    "pipeline": (
        "torch's pipelines run the forward and backward passes in a schedule of their own, so a training loop cannot call them separately",
        "use shard=2, with which each process stores a part of the model, or tensor=2, with which it also computes only a part",
    ),
    "expert": (
        "torch has no layer that sends each token to the process of its experts and back",
        "use shard=2, which also shards the parameters of experts",
    ),
}
"""The dimensions that ``parallel`` does not have, why it does not have them, and what to use instead."""


@dataclasses.dataclass(frozen=True, slots=True)
class ParallelOptions:
    """Sizes of the dimensions of parallelism. Their product must be the number of processes.

    One of the sizes may be -1, which means the number of processes divided by the product of the other sizes. By default, ``shard`` is -1.

    Args:
        replicate: The number of copies of the model. Each copy trains on different samples, and gradients are averaged over the copies.
        shard: The number of processes over which the parameters, gradients and optimizer state of a copy are sharded. Each process trains
            on different samples. With more than one copy, this is torch's hybrid sharding (HSDP).
        context: The number of processes among which each sequence is divided. These processes train on different parts of the same samples.
            The training loop divides each batch with ``context_parallel.shard_sequence``, and attention gathers the keys and values of all
            parts. Parameters, gradients and optimizer state are sharded over these processes, too.
        tensor: The number of processes that together compute each layer named in ``plan``, each with a part of the weights. These
            processes train on the same samples, communicate inside each layer and have consecutive ranks, so they should be on one machine.
        plan: How layers are parallelized if ``tensor`` is more than 1: a mapping from names of modules to the styles of
            ``torch.distributed.tensor.parallel``, such as ``{"layers.*.linear1": ColwiseParallel()}``. In a name, ``*`` stands for any text
            without a dot. None means the plan in the model's attribute ``_tp_plan``, which models of Hugging Face's ``transformers`` have.
            If the model has no such plan, the feed-forward parts of torch's own transformer encoder and decoder layers are parallelized.
        fsdp: The options of ``fully_shard``, as for the strategy ``fsdp``. ``fully_shard`` is applied even if ``shard`` is 1.
        pipeline: Must be 1. There is no pipeline parallelism, and the error for any other size says what to use instead.
        expert: Must be 1. There is no expert parallelism, and the error for any other size says what to use instead.

    Raises:
        UsageError: If a size is neither a positive integer nor -1, if several sizes are -1, if ``plan`` is not a mapping, or if
            ``pipeline`` or ``expert`` is not 1.
    """

    replicate: int = 1
    shard: int = -1
    context: int = 1
    tensor: int = 1
    plan: Mapping[str, ParallelStyle] | None = None
    fsdp: FSDPOptions = dataclasses.field(default_factory=FSDPOptions)
    pipeline: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for name, (why, hint) in _UNSUPPORTED.items():
            if getattr(self, name) != 1:
                raise UsageError(
                    f"strategy 'parallel' has no {name} parallelism, got {name}={getattr(self, name)!r:.60}", why=why, hint=hint
                )
        for name, size in self._given().items():
            if isinstance(size, bool) or not isinstance(size, int) or size < -1 or size == 0:
                raise UsageError(
                    f"ParallelOptions({name}={size!r:.60}) is invalid",
                    why="it is a number of processes",
                    hint=f"use {name}=2, for example, {name}=1 for no parallelism in this dimension, or -1 for the rest of the processes",
                )
        rest = [name for name, size in self._given().items() if size == -1]
        if len(rest) > 1:
            raise UsageError(
                f"{' and '.join(rest)} are {'both' if len(rest) == 2 else 'all'} -1 in ParallelOptions",
                why="only one dimension can take the rest of the processes; shard does by default",
                hint=f"give the size of {' or '.join(rest)}, such as {rest[-1]}=1",
            )
        if self.plan is not None and not isinstance(self.plan, Mapping):
            raise UsageError(
                f"ParallelOptions(plan={self.plan!r:.60}) is invalid",
                why="it maps names of modules to styles of torch.distributed.tensor.parallel",
                hint='use plan={"layers.*.linear1": ColwiseParallel(), "layers.*.linear2": RowwiseParallel()}, for example',
            )

    def _given(self) -> dict[str, int]:
        return {"replicate": self.replicate, "shard": self.shard, "context": self.context, "tensor": self.tensor}

    def sizes(self, num_processes: int) -> dict[str, int]:
        """Return the size of each dimension by name, in the order of the mesh. A size of -1 is replaced by the actual size.

        Raises:
            UsageError: If the product of the sizes cannot be ``num_processes``.
        """
        given = self._given()
        known = math.prod(size for size in given.values() if size != -1)
        has_rest = -1 in given.values()
        if num_processes % known or (known != num_processes and not has_rest):
            described = " x ".join(f"{name} {size}" for name, size in given.items() if size != -1)
            needed = f"a multiple of {known} processes" if has_rest else f"{known} processes"
            raise UsageError(
                f"{described} needs {needed}, and the job has {num_processes}",
                why="the product of the sizes in ParallelOptions is the number of processes",
                hint=f"start {needed}, such as accelkit launch --devices {known}, or change the sizes; -1 in one of them means the rest",
            )
        return {name: num_processes // known if size == -1 else size for name, size in given.items()}


class ParallelStrategy(FSDPStrategy):
    """Parallelism in several dimensions: copies of a sharded model (HSDP), parts of each sequence, and parts of each layer.

    The processes form a mesh, ``rt.mesh``, with the dimensions ``replicate``, ``shard``, ``context`` and ``tensor``. First,
    torch's ``parallelize_module`` divides layers over ``tensor``, according to the tensor-parallel plan. Then, torch's ``fully_shard``
    shards the whole model over ``shard`` and ``context`` together.

    Args:
        options: The sizes of the dimensions, the tensor-parallel plan, and the options of ``fully_shard``.
        device: The device or device type that the strategy is for. None means any device.
    """

    def __init__(self, options: ParallelOptions | None = None, *, device: torch.device | str | None = None) -> None:
        self.parallel_options = checked_options(options, ParallelOptions, "ParallelStrategy(ParallelOptions(replicate=2))")
        super().__init__(self.parallel_options.fsdp, device=device)
        self._mesh: DeviceMesh | None = None  # the mesh over which modules are divided; its dimension shard includes context
        self._context: ContextGroup | None = None

    def data_parallel_size(self, num_processes: int) -> int:
        """Return the product of ``replicate`` and ``shard``.

        Raises:
            UsageError: If the product of the sizes of all dimensions cannot be ``num_processes``.
        """
        sizes = self.parallel_options.sizes(num_processes)
        return sizes["replicate"] * sizes["shard"]

    def device_mesh(self, device: torch.device) -> DeviceMesh:
        """Create the mesh with the dimensions ``replicate``, ``shard``, ``context`` and ``tensor``, and return it."""
        import torch.distributed as dist

        sizes = self.parallel_options.sizes(dist.get_world_size())
        mesh = self._mesh = make_mesh(device.type, sizes | {"shard": sizes["shard"] * sizes["context"], "context": 1})
        if sizes["tensor"] > 1:
            mesh["shard", "tensor"]._flatten()  # with a process group of both dimensions, torch reduces norms over both at once
        if sizes["context"] > 1:
            from accelkit_builtin.strategies.context_parallel import ContextGroup

            # fully_shard needs dimensions of one mesh, and torch warns about dimensions that are joined later. The mesh above is the one
            # that a job without context has, and its process groups have the same names: torch's caches keep these names when another
            # Runtime replaces this one.
            mesh = make_mesh(device.type, sizes)
            self._context = ContextGroup.of_mesh(mesh)
        return mesh

    def teardown(self) -> None:
        """Forget the device mesh. Its process groups are destroyed together with the default process group."""
        self._mesh = self._context = None

    @hookimpl(wrapper=True)
    def make_precision(self) -> Generator[None, Precision, Precision]:
        """Hook wrapper that checks the precision made by the other implementations of ``make_precision`` and returns it unchanged.

        Raises:
            UnsupportedError: If ``fsdp`` does not support the precision, or if the precision replaces layers and the
                option ``tensor`` is not 1.
        """
        precision: Precision = yield from super().make_precision()
        if self.parallel_options.tensor != 1 and isinstance(precision, Float8 | QuantizedPrecision | TransformerEngine):
            raise UnsupportedError(
                f"strategy {self.name!r} does not support precision {precision.name!r} with tensor={self.parallel_options.tensor}",
                plugin=self.plugin,
                why="it replaces layers, and torch's tensor parallelism divides only torch's own Linear and Embedding",
                hint="use precision='bf16-mixed', or tensor=1",
            )
        return precision

    def before_sharding(self, module: torch.nn.Module, device: torch.device) -> None:
        """Divide layers of the module in place over the mesh's dimension ``tensor``.

        ``ParallelOptions.plan`` names the layers. If this option is None or empty, ``plan_of`` finds a plan for the model. If the size of
        ``tensor`` is 1, no layer is divided, but the names in ``ParallelOptions.plan`` are checked.

        Raises:
            PrepareError: If a name in ``ParallelOptions.plan`` matches no module, or if ``ParallelOptions.plan`` is None or empty and no
                other plan is found for the model.
            UnsupportedError: If several layers share a parameter and the plan divides these layers differently, or if the plan in the
                model's ``_tp_plan`` has an unknown style.
        """
        plan = self.parallel_options.plan
        if plan is not None:
            check_plan(module, plan)
        tensor = self._mesh_of(device)["tensor"]
        if tensor.size() > 1:
            plan = plan or plan_of(module, tensor.size(), self.plugin)
            parallelize(module, tensor, plan, self.plugin)

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """Shard the module in place, as ``fsdp`` does, and return the module.

        If the dimension ``context`` has more than one process, also change the attention inside the module: each process gathers the keys
        and values of all parts of a sequence.
        """
        wrapped = super().wrap_module(module, device)
        if self._context is not None:
            from accelkit_builtin.strategies.context_parallel_attention import divide_attention

            divide_attention(wrapped, self._context, self.plugin)
        return wrapped

    def sharding_mesh(self, device: torch.device) -> DeviceMesh:
        """Return the mesh that ``fully_shard`` uses. Its dimensions are ``replicate`` (left out if its size is 1) and ``shard``.

        The dimension ``shard`` of this mesh combines the dimensions ``shard`` and ``context`` of ``rt.mesh``.
        """
        mesh = self._mesh_of(device)
        return mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float, **kwargs: Any
    ) -> torch.Tensor:
        """Clip gradients and return their norm. The gradients may be on different meshes, which torch's own function does not allow.

        A gradient that is not a DTensor is on no mesh: every process has the whole gradient, and it counts once.
        """
        import torch

        held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        gradients: list[Any] = [one.grad for one in held if one.grad is not None]
        by_mesh: dict[DeviceMesh | None, list[Any]] = {}
        for gradient in gradients:
            by_mesh.setdefault(getattr(gradient, "device_mesh", None), []).append(gradient)
        if norm_type == math.inf or len(by_mesh) < 2:
            return super().clip_grad_norm_(held, max_norm, norm_type, **kwargs)
        norms = []
        for mesh, on_mesh in by_mesh.items():
            norm: Any = torch.nn.utils.get_total_norm(on_mesh, norm_type)
            norms.append(norm if mesh is None else norm.full_tensor())
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        shards = [local_part(gradient) for gradient in gradients]
        scale_to_norm(shards, total, max_norm, norm_type, error_if_nonfinite=kwargs.get("error_if_nonfinite", False))
        return total

    def _mesh_of(self, device: torch.device) -> DeviceMesh:
        if self._mesh is None:
            self.device_mesh(device)
        assert self._mesh is not None
        return self._mesh
