"""Initial weights of a model that ``fsdp`` shards: the weights of rank 0, or new weights if the model is on the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def broadcast_weights(module: torch.nn.Module) -> None:
    """Send rank 0's parameters and buffers to all processes, because ``fully_shard`` shards each process's own weights."""
    import torch.distributed as dist

    if dist.get_world_size() > 1:
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)


def owns_tensors(module: torch.nn.Module) -> bool:
    return any(True for named in (module.parameters, module.buffers) for _ in named(recurse=False))


def fill(module: torch.nn.Module) -> None:
    """Initialise this process's shards of the parameters, and all buffers, with the modules' ``reset_parameters`` methods.

    All processes use the same seed. Each process handles one module at a time: it creates the module's full parameters on the CPU,
    initialises them, and copies its own part of each parameter into its shard. The shards are not initialised directly, because some
    devices have a random number generator whose offset cannot be set. On such a device, DTensor would draw the same random numbers for
    every shard.
    """
    import torch
    import torch.distributed as dist

    seed = torch.empty((), dtype=torch.int64).random_()  # advances the generator, as initializing the model would
    seed = seed.to(next(module.parameters()).device)
    dist.broadcast(seed, src=0)
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(int(seed.item()))
    try:
        for owner in module.modules():
            if owns_tensors(owner):
                _fill_one(owner)
    finally:
        torch.default_generator.set_state(before)


def _fill_one(owner: Any) -> None:
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    shards = dict(owner.named_parameters(recurse=False, remove_duplicate=False))
    for name, shard in shards.items():
        setattr(owner, name, torch.nn.Parameter(torch.empty(shard.shape, dtype=shard.dtype), shard.requires_grad))
    try:
        owner.reset_parameters()
        with torch.no_grad():
            for name, shard in shards.items():
                whole = getattr(owner, name)
                if isinstance(shard, DTensor):
                    mine = distribute_tensor(whole.to(shard.device), shard.device_mesh, shard.placements, src_data_rank=None)
                    shard.to_local().copy_(mine.to_local())
                else:
                    shard.copy_(whole)
    finally:
        for name, shard in shards.items():
            setattr(owner, name, shard)
