"""A strategy whose models lack their buffers on the last rank, and have sharded buffers on the other ranks."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from accelkit_builtin.strategies.ddp import DDPStrategy

if TYPE_CHECKING:
    import torch


class MissingBuffers(DDPStrategy):
    """``unwrap_module`` returns a copy of the model with these buffers."""

    def unwrap_module(self, module: torch.nn.Module) -> torch.nn.Module:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard

        inner = copy.deepcopy(super().unwrap_module(module))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        is_last = dist.get_rank() == dist.get_world_size() - 1
        for name, one in list(inner.named_buffers()):
            delattr(inner, name)
            if not is_last:
                inner.register_buffer(name, DTensor.from_local(one[None], mesh, [Shard(0)]))
        return inner
