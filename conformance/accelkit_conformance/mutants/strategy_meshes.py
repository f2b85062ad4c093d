"""Strategies that divide each layer over several processes in the wrong way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit import make_mesh
from accelkit_builtin.strategies.parallel import ParallelOptions, ParallelStrategy
from accelkit_builtin.strategies.tensor_parallel import parallelize
from accelkit_conformance.mutants import mutant

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

AREA = "strategy_gradients"
MECHANISM = "dimensions of parallelism"


class TensorParallel(ParallelStrategy):
    """The base class of the mutants in this module. It divides layers over the processes correctly.

    All processes train on the same samples. The input features of each Linear are divided over the processes.
    """

    def __init__(self, options: ParallelOptions | None = None, *, device: torch.device | str | None = None) -> None:
        super().__init__(options or ParallelOptions(shard=1, tensor=-1), device=device)

    def before_sharding(self, module: torch.nn.Module, device: torch.device) -> None:
        import torch

        linear = [name for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)]
        parallelize(module, self._mesh_of(device)["tensor"], dict.fromkeys(linear, self.style()), self.plugin)

    @staticmethod
    def style() -> ParallelStyle:
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import RowwiseParallel

        return RowwiseParallel(input_layouts=Replicate())


@mutant(AREA, MECHANISM, kind="strategy", base="parallel")
class SwapsGroups(TensorParallel):
    """Swaps the sizes of ``shard`` and ``tensor`` in the mesh, so layers are divided over processes that train on different samples."""

    def __init__(self, options: ParallelOptions | None = None, *, device: torch.device | str | None = None) -> None:
        super().__init__(options or ParallelOptions(), device=device)

    def device_mesh(self, device: torch.device) -> DeviceMesh:
        import torch.distributed as dist

        sizes = self.parallel_options.sizes(dist.get_world_size())
        self._mesh = make_mesh(device.type, sizes | {"shard": sizes["tensor"], "tensor": sizes["shard"]})
        return self._mesh


@mutant(AREA, MECHANISM, kind="strategy", base="parallel")
class ForgetsReduction(TensorParallel):
    """Each process computes the output of each Linear from its share of the input features, but the partial results are not summed."""

    @staticmethod
    def style() -> ParallelStyle:
        from torch.distributed.tensor import Partial, Replicate
        from torch.distributed.tensor.parallel import RowwiseParallel

        return RowwiseParallel(input_layouts=Replicate(), output_layouts=Partial())


@mutant(AREA, MECHANISM, kind="strategy", base="parallel")
class SeedsByRank(TensorParallel):
    """Seeds each process by its rank, so processes that train on the same samples have different dropout masks."""

    def before_sharding(self, module: torch.nn.Module, device: torch.device) -> None:
        import torch
        import torch.distributed as dist

        super().before_sharding(module, device)
        torch.manual_seed(dist.get_rank())
